"""The command `symgraph`: everything there is to type, each with its own help.

    symgraph COMMAND ...            also python -m symgraph COMMAND ...
    mpiexec -n N symgraph COMMAND ...    one rank per device

What a command does is in the module that it loads, so that `symgraph --help` and mistakes in typing
come at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from symgraph import __version__
from symgraph.app.command_line import OK, Parser, status_of
from symgraph.app.run_options import COMMANDS as RUN
from symgraph.app.run_options import add_command, settle
from symgraph.core.columns import wrapped
from symgraph.core.errors import ConfigError, nearest

NAMES = {"measure_machine": "machine"}  # mode -> its command, where that has another name
MODES = MappingProxyType({NAMES.get(mode, mode): mode for mode in RUN})
SCHEDULES = MappingProxyType(
    {
        "simulate": "predict how long a schedule takes, without any network",
        "verify": "check a plan that `symgraph plan CONFIG --dump FILE` wrote",
        "postmortem": "say who waited for whom, from the flight records of a failed run",
    }
)
SOLVE = "solve"
OTHERS = MappingProxyType(
    {
        "new": "write a config and a network file to start from",
        "keys": "list the keys of a config, with their defaults and meanings",
        "schema": "print the JSON Schema of configs, for editors",
        "completion": "print a shell's completion of these commands",
        "version": "print the versions of symgraph and of what it computes with",
    }
)
SUMMARIES = {
    **{name: RUN[mode] for name, mode in MODES.items()},
    **SCHEDULES,
    SOLVE: "place the nodes of a workload file, without any network",
    **OTHERS,
}
SHELLS = ("bash", "zsh", "tcsh")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on these arguments, by default sys.argv's; return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    name, rest = (words[0], words[1:]) if words else ("--help", [])
    if name in SCHEDULES:
        from runtime.frontends.cli import schedule_commands

        return schedule_commands.main(words, prog="symgraph")
    if name == SOLVE:
        from partitioner.__main__ import main as partitioner

        return partitioner(words, prog="symgraph")
    return status_of(lambda: _do(name, rest), with_traceback="--traceback" in rest)


def _do(name: str, words: Sequence[str]) -> int:
    if name in MODES:
        from runtime.frontends.cli import run

        parser = Parser(prog=f"symgraph {name}", description=_sentence(name))
        add_command(parser, MODES[name])
        return run.do(settle(parser.parse_intermixed_args(words), MODES[name]))
    if name in OTHERS:
        parser = Parser(prog=f"symgraph {name}", description=_sentence(name))
        _add_other(parser, name)
        return _do_other(name, parser.parse_args(words))
    if not name.startswith("-"):
        raise ConfigError(f"unknown command {name!r}: {nearest(name, SUMMARIES)}")
    _all_commands(with_arguments=False).parse_args([name])
    return OK


def _sentence(name: str) -> str:
    summary = SUMMARIES[name]
    return f"{summary[0].upper()}{summary[1:]}."


def _all_commands(*, with_arguments: bool) -> argparse.ArgumentParser:
    """Build the parser of all commands; without their arguments, it only prints its help."""
    parser = Parser(
        prog="symgraph",
        description="Split one network over several devices: plan, profile, train.",
        epilog="symgraph COMMAND --help tells more. Start with: symgraph new demo",
    )
    parser.add_argument("--version", action="version", version=f"symgraph {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", required=True)
    if with_arguments:
        from partitioner.solve.solve_command import add_solve
        from runtime.frontends.cli.schedule_commands import add_commands

        add_commands(commands.add_parser)
        add_solve(commands.add_parser)
    for name, summary in SUMMARIES.items():
        if name in commands.choices:
            continue
        added = commands.add_parser(name, help=summary)
        if with_arguments and name in MODES:
            add_command(added, MODES[name])
        elif with_arguments:
            _add_other(added, name)
    return parser


def _add_other(parser: argparse.ArgumentParser, name: str) -> None:
    if name == "new":
        parser.add_argument(
            "name", metavar="NAME", help="the files to write are NAME.py and NAME.yaml"
        )
    elif name == "completion":
        parser.add_argument("shell", choices=SHELLS, help="the shell")
        parser.epilog = (
            "bash: symgraph completion bash > ~/.local/share/bash-completion/completions/symgraph; "
            "zsh: write it to a file _symgraph in a folder of $fpath. Needs the package shtab: "
            "pip install 'symgraph[completion]'"
        )


def _do_other(name: str, options: argparse.Namespace) -> int:
    if name == "new":
        from runtime.frontends.cli.new_project import write_project

        print(write_project(Path(options.name)))
    elif name == "keys":
        from runtime.frontends.cli import run

        run.print_keys()
    elif name == "schema":
        from runtime.frontends.cli.config_schema import config_schema

        print(json.dumps(config_schema(), indent=1))
    elif name == "completion":
        print(_completion(options.shell))
    else:
        print(_versions())
    return OK


def _completion(shell: str) -> str:
    try:
        import shtab
    except ImportError:
        raise ConfigError(
            "completion needs the package shtab: pip install 'symgraph[completion]'"
        ) from None
    text: str = shtab.complete(_all_commands(with_arguments=True), shell=shell)
    return text


def _versions() -> str:
    from runtime.transports.versions import versions

    return wrapped("\n".join(f"{package} {version}" for package, version in versions().items()))
