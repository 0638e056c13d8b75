"""The command line: train, or plan, the run that a config file describes.

    python -m symgraph.run CONFIG [key.path=value ...] [--plan] [--json]
    mpiexec -n N python -m symgraph.run CONFIG            one rank a device
    python -m symgraph.run --measure-machine [FILE]       speeds and links, for `machine: FILE`

Exit status: 0 done, 1 a failure while running, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from symgraph.command import BAD_INPUT, FAILED, INTERRUPTED, OK, say
from symgraph.errors import RunError, SymgraphError

if TYPE_CHECKING:
    from runtime.transports import Cluster
    from symgraph.config_keys import Config
    from symgraph.console import Console


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    options = _parser().parse_intermixed_args(argv)
    warnings.formatwarning = lambda message, *_, **__: f"symgraph: warning: {message}\n"
    if options.keys:
        return _print_keys()
    try:
        return _command(options)
    except (Exception, KeyboardInterrupt) as error:
        return _report(error, options.traceback)


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
    parser.add_argument(
        "--measure-machine", nargs="?", const="-", metavar="FILE",
        help="measure this machine (under mpiexec: its ranks); write FILE, or print it, and exit",
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


def _command(options: argparse.Namespace) -> int:
    from partitioner.strategies import STRATEGIES
    from runtime.schedules import SCHEDULES
    from symgraph.config import load_config
    from symgraph.errors import ConfigError

    if options.measure_machine is not None:
        return _measure_machine(options)
    if options.config is None:
        raise ConfigError("which config? e.g. python -m symgraph.run examples/lstm_lm.yaml")
    config = load_config(
        options.config, options.overrides, schedules=SCHEDULES, strategies=STRATEGIES
    )
    if options.plan:
        return _plan(config, options)
    return _train(config, options)


def _measure_machine(options: argparse.Namespace) -> int:
    from runtime.measure import machine_file, measure_machine, measuring_ranks, write_machine
    from symgraph.errors import ConfigError

    if options.config is not None:
        raise ConfigError(f"--measure-machine takes no config; leave out {options.config!r}")
    cluster = measuring_ranks(os.environ)
    try:
        machine = measure_machine(cluster)
        if 0 in cluster.ranks:
            if options.measure_machine == "-":
                print(machine_file(machine), end="", flush=True)
            else:
                write_machine(machine, options.measure_machine)
                print(machine, flush=True)
        cluster.close()
    except (Exception, KeyboardInterrupt) as error:
        status = _report(error, options.traceback)
        cluster.leave(status)
        return status
    return OK


def _plan(config: Config, options: argparse.Namespace) -> int:
    from runtime.blas import limit_blas
    from runtime.explain import plan_report
    from runtime.trainer import prepare

    with limit_blas(1):
        text, figures = plan_report(prepare(config))
    print(text)
    if options.json:
        print(json.dumps(figures))
    return OK


def _train(config: Config, options: argparse.Namespace) -> int:
    from runtime.transports import launched_by_mpi, make_cluster

    transport = config.transport
    if transport == "auto":
        transport = "mpi" if launched_by_mpi(os.environ) else "threads"
    cluster = make_cluster(transport, len(config.devices), config.timeout)
    try:
        summary = _fit(config, options, cluster) | {"transport": transport}
        cluster.close()
    except (Exception, KeyboardInterrupt) as error:
        status = _report(error, options.traceback)
        cluster.leave(status)
        return status
    if 0 in cluster.ranks and options.json:
        print(json.dumps(summary), flush=True)
    return OK


def _fit(config: Config, options: argparse.Namespace, cluster: Cluster) -> dict[str, Any]:
    """Train as configured, showing progress on rank 0; the summary."""
    from runtime.blas import limit_blas, slowed_down
    from runtime.explain import how
    from runtime.native import cached
    from runtime.prices import shared_prices
    from runtime.trainer import Trainer, agree_on_config, blas_threads, load_corpus, prepare
    from symgraph.console import Console

    console = Console(sys.stderr if options.json else sys.stdout, quiet=0 not in cluster.ranks)
    warning = slowed_down(dict(os.environ))
    if warning:
        console.line(f"warning: {warning}")
    compiled, folder = cached()
    if not compiled:
        console.line(f"compiling kernels, which takes half a minute, once: they stay in {folder}")
    agree_on_config(config, cluster)
    job = prepare(config, partial(shared_prices, cluster=cluster))
    corpus = load_corpus(config)
    placement = job.training.partition.placement
    console.line(
        f"{corpus.name}: {len(corpus.train):,} training and {len(corpus.valid):,} held-out tokens; "
        f"perplexity of word frequencies alone {corpus.unigram_perplexity():.0f}"
    )
    console.line(
        f"{config.model}: {placement.stages} stages on {', '.join(map(str, placement.devices))}, "
        f"{len(job.training.sizes)} micro-batches, {how(job.training)}"
    )
    if job.training.late:
        console.line(f"note: {job.training.late}")
    idle = set(placement.devices) - {placement.devices[r] for r in placement.rank_of}
    if idle:
        console.line(f"note: nothing is placed on {', '.join(map(str, sorted(idle)))}")
    with limit_blas(blas_threads(config, cluster, os.cpu_count() or 1)):
        trainer = Trainer(job, cluster, corpus)
        path = trainer.resume()
        if path is not None:
            console.line(f"going on from {path}")
        done = trainer.training.steps
        with console.progress(
            trainer.total_steps, config.train.seconds, step=done, tokens=trainer.tokens(done)
        ) as progress:
            summary = trainer.fit(
                lambda p: progress.update(p.step, p.tokens, p.loss), progress.evaluation
            )
    _show(summary, console)
    return summary | {"corpus": corpus.name}


def _show(summary: dict[str, Any], console: Console) -> None:
    from symgraph.units import bytes_text, flops_text, seconds_text

    console.table(
        "stages",
        ("stage", "device", "time a step", "work", "parameters", "memory predicted", "measured",
         "sent a step"),
        [
            (
                s["stage"], s["device"], seconds_text(s["seconds"]), flops_text(s["flops"]),
                bytes_text(s["parameter_bytes"]), bytes_text(s["peak_bytes_predicted"]),
                None if s["peak_bytes_measured"] is None else bytes_text(s["peak_bytes_measured"]),
                f"{bytes_text(s['bytes_sent'])} in {s['messages']}",
            )
            for s in summary["stages"]
        ],
    )  # fmt: skip
    console.summary({
        "held-out perplexity": summary["perplexity"],
        "steps": summary["steps"],
        "tokens": summary["tokens"],
        "tokens a second": summary["tokens_per_second"],
        "step": seconds_text(summary["step_seconds"]),
        **_predicted(summary),
    })  # fmt: skip


def _predicted(summary: dict[str, Any]) -> dict[str, str]:
    """What is known of steps that are all alike."""
    from symgraph.units import seconds_text

    if summary["predicted_step_seconds"] is None:
        return {}
    return {
        "step predicted from the bodies' times": seconds_text(summary["predicted_step_seconds"]),
        "bubble": f"{summary['bubble_fraction']:.1%} of all devices' time",
    }


def _report(error: BaseException, with_traceback: bool) -> int:
    """Say what ended the run, in one line; the exit status."""
    if isinstance(error, KeyboardInterrupt):
        say("interrupted")
        return INTERRUPTED
    if with_traceback or not isinstance(error, SymgraphError):
        traceback.print_exception(error)
    say(f"error: {error}")
    bad_input = isinstance(error, SymgraphError) and not isinstance(error, RunError)
    return BAD_INPUT if bad_input else FAILED


if __name__ == "__main__":
    sys.exit(main())
