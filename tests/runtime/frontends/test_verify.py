"""Dumped plans are verified, by a file that shares no code with what made them."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from runtime.frontends.cli import verify as verifier
from runtime.frontends.cli.plan_dump import plan_records
from runtime.frontends.cli.verify import verify
from runtime.planning import draft
from runtime.planning.plan import Plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.replay import check
from symgraph.core.context import cpu
from symgraph.core.errors import ScheduleError
from tests.helpers import collectives
from tests.helpers.networks import random_case, random_groups
from tests.helpers.operators import random_operators
from tests.helpers.pipelines import make_plan, on_devices
from tests.helpers.recurrent import lstm_case

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")


def lines(plan: Plan) -> list[str]:
    return [json.dumps(record) for record in plan_records(plan)]


@cache
def small() -> tuple[str, ...]:
    """A recurrent network of two stages on two ranks, three micro-batches and time segments."""
    case = lstm_case(2, 2, batch=5)
    groups = {"layer0": cpu(0), "layer1": cpu(1), "head": cpu(1)}
    options = on_devices(2, groups, "zb-h1", 3, time_segment=1, update=True, slots=1)
    return tuple(lines(make_plan(case, options)))


@pytest.mark.every(4)
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_plans_of_random_networks_are_right(schedule, micro_batches):
    for seed in range(4):
        case, groups = random_case(seed), random_groups(seed, 3)
        more = {"recompute": "all" if seed % 2 else "none", "time_segment": 1 if seed < 2 else None}
        plan = make_plan(case, on_devices(3, groups, schedule, micro_batches, update=True, **more))
        assert verify(lines(plan)) == []


@pytest.mark.parametrize("network", [collectives.network, collectives.tree])
def test_plans_with_collectives_are_right(network):
    groups = {f"rank{i}": cpu(i) for i in range(3)}
    records = lines(make_plan(network(3), on_devices(3, groups, "1f1b", 2)))
    assert any(json.loads(r)["is"] == "exchange" for r in records)
    assert verify(records) == []


@pytest.mark.parametrize("shard_optimizer", [False, True])
def test_plans_with_replicas_are_right(shard_optimizer):
    case = lstm_case(2, 2, batch=6)
    groups = {"layer0": (cpu(0), cpu(1)), "layer1": cpu(2), "head": cpu(2)}
    given = {"update": True, "shard_optimizer": shard_optimizer, "slots": 2}
    records = lines(make_plan(case, on_devices(3, groups, "1f1b", 2, **given)))
    assert any(json.loads(r)["is"] == "copies" for r in records)
    assert verify(records) == []
    assert verify([r.replace(" C1 ", " ") for r in records])
    assert bool(verify([r.replace(" C2", "") for r in records])) == shard_optimizer


def test_the_verifier_needs_the_standard_library_only(tmp_path):
    """It runs without site-packages, copied to a folder without our packages."""
    copy = tmp_path / "verify.py"
    copy.write_text(Path(verifier.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    plan = tmp_path / "plan.jsonl"
    for text, status in (("\n".join(small()), 0), ("\n".join(small()[:-1]), 1), ("{}", 2)):
        plan.write_text(text, encoding="utf-8")
        command = [sys.executable, "-I", "-S", str(copy), str(plan)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def changed(pattern: str, new: str, of: str) -> list[str]:
    """The small plan with one change in the first record of a kind that the pattern fits."""
    records = list(small())
    at = next(
        i
        for i, line in enumerate(records)
        if json.loads(line)["is"] == of and re.search(pattern, line)
    )
    records[at] = re.sub(pattern, new, records[at], count=1)
    return records


@pytest.mark.parametrize(
    ("of", "pattern", "new", "says"),
    [
        ("program", "0F0 ", "", "rank 0 lacks run 0F of micro-batch 0"),
        ("program", "0F0 ", "0F0 0F0 ", "too often"),
        ("program", "0F1 ", "0F2 ", "lacks run 0F of micro-batch 1"),
        ("program", r"(S\d+\.0)", r"S99.0", "'99'"),
        ("program", r" C U0", " U0 C", "rank 0 ends with U0 C"),
        ("program", r" U0", "", "are updated, but"),
        ("program", r"(0F0 .*?)(S\d+\.0) (.*?)(S\d+\.0) ", r"\1\4 \3\2 ", "channel"),
        ("node", '"rank": 0', '"rank": 1', "is not on the device of rank 0"),
        ("node", r'"inputs": \["[^"]+"', '"inputs": ["nothing"', "which no node makes"),
        ("message", r'"bytes": \d+', '"bytes": 8', "but the value is"),
        ("message", '"from": 0, "to": 1', '"from": 1, "to": 0', "is not made by"),
        ("memory", r'"peak": (\d)', r'"peak": 9\1', "peak 9"),
        ("memory", r'"limit": null', '"limit": 8', "limit 8"),
        ("memory", r'"parameters": (\d)', r'"parameters": 9\1', "parameters of"),
        ("adding", r'"do": "keep (\d)"', r'"do": "keep 9"', "9"),
        ("adding", r'"do": "add term to', r'"do": "keep', "lacks micro-batches"),
        ("root", r'"(\d+:\w+)": 0', r'"\1": 1000000', "lies beyond"),
        ("block", r'"offset": \d+', '"offset": 1000000000', "lies beyond the arena"),
        ("block", r'"last": \d+', '"last": 0', "is kept from"),
        ("plan", r'"micro_batches": \[2, ', '"micro_batches": [2, 2, ', "of micro-batch 3"),
    ],
)
def test_what_is_wrong_is_said(of, pattern, new, says):
    assert verify(small()) == []
    found = verify(changed(pattern, new, of))
    assert any(says in fault for fault in found), found


def test_no_text_makes_it_raise_anything_else():
    """A changed plan is wrong, or is no plan: never a traceback."""
    rng = random.Random(0)
    for _ in range(60):
        records = [json.loads(line) for line in small()]
        record = rng.choice([records[0], *rng.sample(records, 20)])
        key = rng.choice(list(record))
        record[key] = rng.choice([None, "x", -1, [], {}, [None], 1 << 70, record["is"]])
        with suppress(ValueError):
            verify(map(json.dumps, records))


def test_a_value_that_is_written_over_is_missed():
    """Two blocks of one time in one place, and every reader of the first says so."""
    records = [json.loads(line) for line in small()]
    one, two = [r for r in records if r["is"] == "block" and r["first"] < 3 < r["last"] - 4][:2]
    two["offset"] = one["offset"]
    found = verify(map(json.dumps, records))
    assert any("overlap in space and time" in fault for fault in found)
    assert any("is not there" in fault for fault in found)


def test_a_hang_for_want_of_room_is_found():
    """Both ranks free before they receive: channels must hold a message each."""
    records = [json.loads(line) for line in small()]
    programs = [r for r in records if r["is"] == "program"]
    for record in programs:
        text = record["instructions"].split()
        frees = [t for t in text if t.startswith("D")]
        for free in frees:  # at once after the last send of its body
            text.remove(free)
            run = text.index(free[1:])
            sends = [i for i in range(run + 1, len(text)) if text[i][0] == "S"]
            last = run
            while last + 1 in sends:
                last += 1
            text.insert(last + 1, free)
        record["instructions"] = " ".join(text)
    found = verify(map(json.dumps, records))
    assert any("hold no message, these wait for ever: rank 0 at" in fault for fault in found)


@pytest.mark.every(30)
@pytest.mark.parametrize("seed", range(50))
def test_verify_says_of_all_operators_what_check_says(seed, monkeypatch):
    """zb-h2 and zb-v could not be planned where two stages send each other gradients' terms (of
    networks drawn earlier, seed 25): both name the same ranks.
    """
    monkeypatch.setattr(draft, "check", lambda *_: None)
    case, apart = random_operators(seed)
    for turn, schedule in enumerate(SCHEDULES):
        groups = random_groups(100 * seed + turn, 3)
        plan = make_plan(case, on_devices(3, groups, schedule, 3 if apart else 1))
        found = verify(lines(plan))
        if found:
            with pytest.raises(ScheduleError, match="no rank can continue"):
                check(plan.schedule, plan.partition, len(plan.sizes))
            assert any("wait for ever" in fault for fault in found)
        else:
            check(plan.schedule, plan.partition, len(plan.sizes))
