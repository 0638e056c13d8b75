"""Mutants of valid plans are killed; plans that only look different are not."""

from __future__ import annotations

import json
import random
import re
from functools import cache

import pytest

from benchmarks.plan_mutants.__main__ import mutants, plans, verdict
from benchmarks.plan_mutants.mutations import MUTATIONS
from runtime.frontends.cli.verify import verify


@pytest.mark.slow
def test_mutants_of_plans_are_killed():
    """All but a term that is added twice in place of another that something else reads too."""
    survivors = [
        (name, words)
        for name, words, lines in mutants(2 * len(MUTATIONS), seed=2)
        if name != "double_term" and not verdict(lines)
    ]
    assert survivors == []


@cache
def some_plan() -> tuple[str, ...]:
    return tuple(next(plans()))


@pytest.mark.parametrize("change", ["order", "room", "tags", "limit"])
def test_harmless_changes_are_accepted(change):
    """A verifier that refuses everything would kill all mutants."""
    records = [json.loads(line) for line in some_plan()]
    if change == "order":
        moved = ("root", "block", "message", "gradient")
        rest = [r for r in records if r["is"] in moved]
        random.Random(0).shuffle(rest)
        records = [r for r in records if r["is"] not in moved] + rest
    for record in records:
        if record["is"] == "memory" and change == "room":
            record["arena"] += 64
            record["peak"] += 64
        if record["is"] == "memory" and change == "limit":
            record["limit"] = record["peak"]
        if change == "tags" and record["is"] == "message":
            record["tag"] = int(f"10{record['tag']}")
        if change == "tags" and record["is"] == "program":
            record["instructions"] = re.sub(r"([SR])(\d+)\.", r"\g<1>10\2.", record["instructions"])
    lines = [json.dumps(record) for record in records]
    assert lines != list(some_plan())
    assert verify(lines) == []
