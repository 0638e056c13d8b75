"""The command line: train, or plan, the run that a config file describes.

    python -m symgraph.run CONFIG [key.path=value ...] [--plan] [--json]
    mpiexec -n N python -m symgraph.run CONFIG            one rank a device

Exit status: 0 done, 1 a failure while running, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from symgraph.errors import RunError, SymgraphError

if TYPE_CHECKING:
    from runtime.trainer import Job, Progress
    from symgraph.config_keys import Config

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = _parser().parse_args(argv)
    if options.keys:
        return _print_keys()
    try:
        return _command(options)
    except RunError as error:
        return _complain(error, FAILED, options.traceback)
    except SymgraphError as error:
        return _complain(error, BAD_INPUT, options.traceback)
    except KeyboardInterrupt:
        print("symgraph: interrupted", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m symgraph.run",
        description="Train the network of a config file as a pipeline over its devices.",
        epilog="exit status: 0 done, 1 a failure while running, 2 bad input, 130 interrupted",
    )
    parser.add_argument("config", nargs="?", help="config file (YAML), e.g. examples/lstm_lm.yaml")
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value",
        help="change a key of the config, e.g. pipeline.micro_batches=8",
    )  # fmt: skip
    parser.add_argument(
        "--plan", action="store_true",
        help="print partition, memory, schedule and predicted timeline; run nothing",
    )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true",
        help="print the result as one JSON object on the last line of stdout",
    )  # fmt: skip
    parser.add_argument("--keys", action="store_true", help="list the keys of a config and exit")
    parser.add_argument(
        "--traceback", action="store_true", help="print the Python traceback of an error"
    )
    return parser


def _print_keys() -> int:
    from symgraph.config_keys import key_help

    for key, default, meaning in key_help():
        print(f"{key}  (default: {default})\n    {meaning}")
    return OK


def _complain(error: BaseException, status: int, with_traceback: bool) -> int:
    if with_traceback:
        traceback.print_exception(error)
    print(f"symgraph: error: {error}", file=sys.stderr, flush=True)
    return status


def _command(options: argparse.Namespace) -> int:
    from runtime.schedules import SCHEDULES
    from symgraph.config import load_config
    from symgraph.errors import ConfigError

    if options.config is None:
        raise ConfigError("which config? e.g. python -m symgraph.run examples/lstm_lm.yaml")
    config = load_config(options.config, options.overrides, schedules=SCHEDULES)
    if options.plan:
        return _plan(config, options)
    return _train(config, options)


def _plan(config: Config, options: argparse.Namespace) -> int:
    from runtime.explain import plan_report
    from runtime.trainer import limit_blas, prepare

    with limit_blas(1):
        text, figures = plan_report(prepare(config))
    print(text)
    if options.json:
        print(json.dumps(figures))
    return OK


def _train(config: Config, options: argparse.Namespace) -> int:
    from runtime.trainer import Trainer, blas_threads, limit_blas, load_corpus, prepare
    from runtime.transports import launched_by_mpi, make_cluster
    from symgraph.console import Console

    transport = config.transport
    if transport == "auto":
        transport = "mpi" if launched_by_mpi(os.environ) else "threads"
    size = len(config.devices)
    with make_cluster(transport, size, config.timeout) as cluster:
        first = 0 in cluster.ranks
        console = Console(sys.stderr if options.json else sys.stdout, quiet=not first)
        try:
            job = prepare(config)
            console.line(f"reading {config.data.kind} ...")
            corpus = load_corpus(config)
            threads = blas_threads(config, len(cluster.ranks), os.cpu_count() or 1)
            with limit_blas(threads):
                trainer = Trainer(job, cluster, corpus)
                summary = _fit(trainer, console)
        except (Exception, KeyboardInterrupt) as error:
            return _end(cluster, error, options)
    summary["transport"] = transport
    summary["corpus"] = corpus.name
    if first:
        _show(summary, console)
        if options.json:
            print(json.dumps(summary), flush=True)
    return OK


if __name__ == "__main__":
    sys.exit(main())

__all__ = ["Any", "Job", "Progress", "main", "time"]
