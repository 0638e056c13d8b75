"""How much the verifier of plans catches: valid plans, each with one thing made wrong.

    python -m benchmarks.plan_mutants [--mutants 2000] [--seed 1]

The mutations are made so that the plan is wrong whatever the verifier says (mutations.py says why).
The table counts per mutation how many mutants were killed; survivors are listed with what was
changed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.plan_mutants.mutant import Mutant
from benchmarks.plan_mutants.mutations import MUTATIONS
from runtime.frontends.cli.plan_dump import plan_records
from runtime.frontends.cli.verify import RULES, verify
from runtime.planning.options import Options
from runtime.planning.planner import plan_model
from symgraph.core.context import cpu
from symgraph.frontend.model import load_model

WAYS: tuple[dict[str, Any], ...] = (
    {"schedule": "gpipe", "recompute": "all"},
    {"schedule": "1f1b"},
    {"schedule": "interleaved", "turns": 2},
    {"schedule": "zb-h1", "time_segment": 2},
    {"schedule": "zb-h2"},
    {"schedule": "zb-v", "turns": 2},
    {"schedule": "wavefront", "time_segment": 1, "micro_batches": 1},
    {"schedule": "1f1b", "decode": (cpu(0), cpu(1))},
    {"schedule": "1f1b", "layer0": (cpu(0), cpu(2)), "micro_batches": 2},
    {"schedule": "gpipe", "micro_batches": 5, "memory": 1 << 20},
)


def plans() -> Iterator[list[str]]:
    """Yield dumps of small LSTM language models on three devices, planned in several ways."""
    for way in WAYS:
        more = dict(way)
        turns = more.pop("turns", 1)
        stages = ["embed", "layer0", "layer1", "layer2", "decode"]
        groups: dict[str, Any] = {
            group: cpu(i * 3 * turns // len(stages) % 3) for i, group in enumerate(stages)
        }
        groups |= {group: more.pop(group) for group in ("decode", "layer0") if group in more}
        shape = {"batch_size": 7, "sequence_length": 4, "vocab": 12, "dtype": "float32"}
        model = load_model(
            "examples.lstm_lm:build", {**shape, "layers": 3, "hidden": 4, "embed": 4}
        )
        options = Options(
            groups,
            cpu(0),
            (cpu(0), cpu(1), cpu(2)),
            more.pop("schedule"),
            more.pop("micro_batches", 4),
            update=True,
            slots=2,
            whole=False,
            **more,
        )
        plan = plan_model(model, options, "float32", train=True)
        yield [json.dumps(record) for record in plan_records(plan)]


def mutants(count: int, seed: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the mutation, what it changed, and the plan; mutations and plans take turns."""
    rng, pool = random.Random(seed), list(plans())
    for lines in pool:
        faults = verify(lines)
        if faults:
            sys.exit(f"a plan is wrong without any mutation: {faults[0]}")
    made = turn = 0
    while made < count:
        mutation = MUTATIONS[turn % len(MUTATIONS)]
        mutant = Mutant(rng.choice(pool), rng)
        turn += 1
        try:
            words = mutation(mutant)
        except (IndexError, ValueError):  # the plan has nothing to mutate in this way
            continue
        made += 1
        yield mutation.__name__, words, mutant.lines()


def main() -> None:
    """Verify the mutants; print the table, the survivors and the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mutants", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="which ones")
    options = parser.parse_args()
    killed, all_ = Counter[str](), Counter[str]()
    for name, words, lines in mutants(options.mutants, options.seed):
        all_[name] += 1
        faults = verdict(lines)
        killed[name] += bool(faults)
        if not faults:
            print(f"survived: {name}: {words}", flush=True)
    for name in (m.__name__ for m in MUTATIONS):
        print(f"{name:<24} {killed[name]:>4} of {all_[name]:>4}")
    share = killed.total() / all_.total()
    print(f"{len(RULES)} rules kill {killed.total()} of {all_.total()} mutants: {share:.2%}")


def verdict(lines: Sequence[str]) -> list[str]:
    """Return what the verifier says, also of what is no plan any more."""
    try:
        return verify(lines)
    except ValueError as error:
        return [str(error)]


if __name__ == "__main__":
    main()
