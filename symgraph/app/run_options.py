"""Options of `python -m symgraph.run`, and of `symgraph train`, `symgraph plan` and the like.

`python -m symgraph.run` does what one of its options asks for, such as `--plan`; without one it
trains. `symgraph plan` is the same with only the options that go with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from symgraph.app.command_line import Parser
from symgraph.core.errors import ConfigError

# at most one of these; without one: train
MODES = ("plan", "explain", "predict", "profile", "compare", "search", "measure_machine")
TRAIN = "train"
STATUSES = (
    "exit status: 0 done, 1 a failure while running, 2 bad input, 3 no placement or schedule fits "
    "the memory limit, 130 interrupted, 141 nobody reads its output, 143 stopped by SIGTERM "
    "or SIGUSR1"
)
COMMANDS = MappingProxyType(  # mode -> what its command does
    {
        TRAIN: "train the network of a config as a pipeline over its devices",
        "plan": "print partition, memory, schedule and predicted timeline; run nothing",
        "explain": "print why a node or ctx_group is on its device",
        "predict": "run the data through the network forward only and write its outputs",
        "profile": "measure some steps: where their time goes, beside what was predicted",
        "compare": "measure several configs, or the `candidates:` of one, and rank them",
        "search": "find the fastest split, schedule and micro-batches, and write them as a config",
        "measure_machine": "measure this machine's speeds and links, for `machine: FILE`",
    }
)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of steps, got {text!r}")
    return int(text)


def _restarts(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of restarts, got {text!r}")
    return int(text)


MODE_KEYWORDS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "explain": {
            "action": "append",
            "metavar": "NODE|GROUP",
            "help": "print why a node or ctx_group is on its device: the predicted step, messages "
            "and memory with it on each other one; may be given several times",
        },
        "predict": {
            "action": "store",
            "metavar": "FILE",
            "help": "run all samples of the data through the network, in order, with the newest "
            "checkpoint's weights, and write its outputs as .npz",
        },
        "measure_machine": {
            "action": "store",
            "nargs": "?",
            "const": "-",
            "metavar": "FILE",
            "help": 'measure this machine (under mpiexec: its ranks), or "devices=[gpu(0)]" of '
            "it; write FILE, or print it, and exit",
        },
    }
)


class Option(NamedTuple):
    """An option of one mode or several."""

    flag: str
    modes: tuple[str, ...]  # that it goes with
    group: str
    keywords: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Its name among the parsed arguments."""
        return self.flag.strip("-").replace("-", "_")

    def named(self) -> Option:
        """Say in the help which modes it goes with."""
        modes = " or ".join(f"--{mode}" for mode in self.modes)
        if self.modes == (TRAIN,):
            return self
        return self._replace(
            keywords={**self.keywords, "help": f"with {modes}: {self.keywords['help']}"}
        )


def _option(flag: str, modes: str, group: str, help: str, **keywords: Any) -> Option:
    return Option(flag, tuple(modes.split()), group, {"help": help, **keywords})


OPTIONS = (
    _option(
        "--dump",
        "plan",
        "planning",
        "write the whole plan as lines of JSON, for `symgraph verify`",
        metavar="FILE",
    ),
    _option(
        "--onnx",
        "plan",
        "planning",
        "write the network as an ONNX model, with the stage and devices of each node",
        metavar="FILE",
    ),
    _option(
        "--log",
        TRAIN,
        "training",
        "append a line of JSON to FILE for each training step",
        metavar="FILE",
    ),
    _option(
        "--tensorboard",
        TRAIN,
        "training",
        "write scalars of each training step for TensorBoard",
        metavar="DIR",
    ),
    _option(
        "--restarts",
        TRAIN,
        "training",
        "start the run again when it fails, up to N times: "
        "from its newest checkpoint, and without the device that failed",
        metavar="N",
        type=_restarts,
    ),
    _option(
        "--launcher",
        TRAIN,
        "training",
        'with --restarts: what starts the ranks, such as "mpiexec -n {ranks}"',
        metavar="COMMAND",
    ),
    _option(
        "--winner",
        "search",
        "profiling",
        "config that the search writes (default: winner.yaml)",
        metavar="FILE",
    ),
    _option(
        "--steps",
        "profile compare search",
        "profiling",
        "steps to measure (default: 20)",
        metavar="N",
        type=_positive,
    ),
    _option(
        "--no-baseline",
        "profile compare search",
        "profiling",
        "do not measure the network on "
        "one device as well, with all cores, and do not say what the partition gains over it",
        action="store_const",
        const=True,
    ),
    _option(
        "--trace",
        "profile",
        "profiling",
        "write measured and predicted timelines for ui.perfetto.dev",
        metavar="FILE",
    ),
    _option(
        "--report",
        "profile compare",
        "profiling",
        "write a page with timelines and tables, pictures and CSV files",
        metavar="DIR",
    ),
    _option(
        "--save-costs",
        "profile",
        "profiling",
        "write the kernel times, for partition.costs",
        metavar="FILE",
    ),
)


def run_parser() -> argparse.ArgumentParser:
    """Build the parser of `python -m symgraph.run`, with an option for each mode."""
    parser = Parser(
        prog="python -m symgraph.run",
        description="Train the network of a config file as a pipeline over its devices.",
        epilog=f"{STATUSES}. The command symgraph does the same: symgraph --help",
    )
    _add_config(parser, "?", several=True)
    group = parser.add_argument_group("instead of training")
    for mode in MODES:
        flag = f"--{mode.replace('_', '-')}"
        keywords = {"help": COMMANDS[mode], "action": "store_true", **MODE_KEYWORDS.get(mode, {})}
        group.add_argument(flag, **keywords)
    group.add_argument("--keys", action="store_true", help="list the keys of a config and exit")
    _add_options(parser, [option.named() for option in OPTIONS])
    return parser


def add_command(parser: argparse.ArgumentParser, mode: str) -> None:
    """Add to the parser of a command, such as `symgraph plan`, the arguments of its mode."""
    parser.epilog = STATUSES
    asked: dict[str, Any] = dict.fromkeys((*MODES, *(o.name for o in OPTIONS)))
    parser.set_defaults(**asked, keys=False, config=None)
    if mode == "measure_machine":
        parser.add_argument(
            mode, nargs="?", default="-", metavar="FILE", help="machine file (default: print it)"
        )
        parser.add_argument(
            "overrides",
            nargs="*",
            metavar="devices=[...]",
            help="devices to measure, such as devices=[gpu(0)] (default: the cores, or under "
            "mpiexec its ranks)",
        )
        _add_traceback(parser)
    else:
        _add_config(parser, None, several=mode == "compare")
    if mode == "predict":
        parser.add_argument(
            "--output", dest=mode, metavar="FILE", required=True, help="the outputs, as .npz"
        )
    elif mode not in (TRAIN, "measure_machine"):
        parser.set_defaults(**{mode: True})
    _add_options(parser, [option for option in OPTIONS if mode in option.modes])


def settle(options: argparse.Namespace, mode: str) -> argparse.Namespace:
    """Sort the words of a command: those of `explain` without "=" name nodes and groups.

    Raises ConfigError if there are none.
    """
    if mode == "explain":
        options.explain = [word for word in options.overrides if "=" not in word]
        options.overrides = [word for word in options.overrides if "=" in word]
        if not options.explain:
            raise ConfigError("which node or ctx_group? e.g. symgraph explain CONFIG lstm0")
    return options


def _add_config(parser: argparse.ArgumentParser, count: str | None, *, several: bool) -> None:
    parser.add_argument(
        "config",
        nargs=count,
        help="config file (YAML), e.g. examples/lstm_lm.yaml, or a network (.onnx, .pt2, .json)",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key.path=value",
        help="change a key of the config, e.g. pipeline.micro_batches=8"
        + ("; or one more config, to compare" if several else ""),
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the result as one JSON object on the last line of stdout",
    )
    _add_traceback(parser)


def _add_traceback(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--traceback", action="store_true", help="print the Python traceback of an error"
    )


def _add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        groups[option.group].add_argument(option.flag, **option.keywords)
