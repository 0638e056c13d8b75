"""The arguments of `python -m symgraph.run`."""

from __future__ import annotations

import argparse

from symgraph.app.exit_status import Parser

# at most one of them; none: train
MODES = ("plan", "profile", "compare", "search", "measure_machine")
NEEDS: dict[str, tuple[str, ...]] = {  # what goes with some modes only
    "steps": ("profile", "compare", "search"),
    "winner": ("search",),
    "trace": ("profile",),
    "save_costs": ("profile",),
    "report": ("profile", "compare"),
}


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = Parser(
        prog="python -m symgraph.run",
        description="Train the network of a config file as a pipeline over its devices.",
        epilog="exit status: 0 done, 1 a failure while running, 2 bad input, 3 no placement or "
        "schedule keeps to the memory limit, 130 interrupted",
    )
    made.add_argument("config", nargs="?", help="config file (YAML), e.g. examples/lstm_lm.yaml")
    made.add_argument(
        "overrides",
        nargs="*",
        metavar="key.path=value",
        help="change a key of the config, e.g. pipeline.micro_batches=8; with --compare also "
        "further configs",
    )
    made.add_argument(
        "--plan",
        action="store_true",
        help="print partition, memory, schedule and predicted timeline; run nothing",
    )
    made.add_argument(
        "--log", metavar="FILE", help="append a line of JSON to FILE for each training step"
    )
    made.add_argument(
        "--tensorboard", metavar="DIR", help="write scalars of each training step for TensorBoard"
    )
    _profiling(made.add_argument_group("profiling"))
    made.add_argument(
        "--json",
        action="store_true",
        help="print the result as one JSON object on the last line of stdout",
    )
    made.add_argument(
        "--measure-machine",
        nargs="?",
        const="-",
        metavar="FILE",
        help='measure this machine (under mpiexec: its ranks), or "devices=[gpu(0)]" of it; '
        "write FILE, or print it, and exit",
    )
    made.add_argument("--keys", action="store_true", help="list the keys of a config and exit")
    made.add_argument(
        "--traceback", action="store_true", help="print the Python traceback of an error"
    )
    return made


def _profiling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile",
        action="store_true",
        help="measure some steps: where their time goes, beside what was predicted",
    )
    group.add_argument(
        "--compare",
        action="store_true",
        help="measure several configs, or the `candidates:` of one, in alternation, and rank them",
    )
    group.add_argument(
        "--search",
        action="store_true",
        help="find the fastest split, schedule, micro-batches and time segments, and write them as "
        "a config; with `machine: FILE` by simulation alone",
    )
    group.add_argument(
        "--winner", metavar="FILE", help="config that --search writes (default: winner.yaml)"
    )
    group.add_argument("--steps", type=_count, metavar="N", help="steps to measure (default: 20)")
    group.add_argument(
        "--trace",
        metavar="FILE",
        help="with --profile: write measured and predicted timelines for ui.perfetto.dev",
    )
    group.add_argument(
        "--report",
        metavar="DIR",
        help="write a page with timelines and tables, pictures and CSV files",
    )
    group.add_argument(
        "--save-costs",
        metavar="FILE",
        help="with --profile: write the kernel times, for partition.costs",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of steps, got {text!r}")
    return int(text)
