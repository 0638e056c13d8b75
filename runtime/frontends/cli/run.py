"""The command line: train, or plan, the run that a config file describes.

    python -m symgraph.run CONFIG [key.path=value ...] [--plan | --profile] [--json]
    python -m symgraph.run CONFIG --explain NODE|GROUP     why it is on its device
    python -m symgraph.run CONFIG CONFIG ... --compare
    python -m symgraph.run CONFIG --predict OUT.npz       outputs for all samples of its data
    mpiexec -n N python -m symgraph.run CONFIG            one rank per device
    python -m symgraph.run --measure-machine [FILE]       speeds and links, for `machine: FILE`;
                           ["devices=[gpu(0), ...]"]      of these devices, by default the cores

Exit status: 0 done, 1 a failure while running, 2 bad input, 3 nothing keeps to the memory limit,
130 interrupted, 141 nobody reads its output, 143 stopped by SIGTERM or SIGUSR1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from symgraph.app.command_line import (
    OK,
    TERMINATED,
    report,
    require_folder,
    require_writable,
    say,
    status_of,
)
from symgraph.app.run_options import MODES, OPTIONS, TRAIN, run_parser
from symgraph.core.columns import columns, wrapped
from symgraph.core.errors import ConfigError
from symgraph.core.visible import visible_lines

if TYPE_CHECKING:
    from runtime.engine.flight_record import FlightRecorder
    from runtime.training.clusters import Clusters
    from runtime.training.data.base import Dataset
    from runtime.training.job import Job
    from runtime.training.supervised import SupervisorLink
    from runtime.training.trainer import Figures, Progress, Trainer
    from symgraph.app.config import Config
    from symgraph.app.console import Activity, Console

    Work = Callable[[Mapping[str, Config], argparse.Namespace, Clusters, Console], dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    words = sys.argv[1:] if argv is None else argv
    return status_of(
        lambda: do(run_parser().parse_intermixed_args(words)),
        with_traceback="--traceback" in words,
    )


def print_keys() -> int:
    """Print the keys of a config, with their defaults and meanings."""
    from symgraph.app.config import key_help

    for key, default, meaning in key_help():
        print(wrapped(f"{key}  (default: {default})"))
        for part in re.split(r"(?<=:)\n", meaning):
            print(textwrap.indent(textwrap.fill(part, (columns() or 100) - 4), "    "))
    return OK


def do(options: argparse.Namespace) -> int:
    """Do what parsed arguments ask for; return the exit status."""
    from partitioner.strategies import STRATEGIES
    from runtime.schedule.generators.table import SCHEDULES
    from runtime.transports import launched_by_mpi
    from symgraph.app.config import load_config

    if options.keys:
        return print_keys()
    _require_one_mode(options)
    if options.measure_machine is not None:
        return _measure_machine(options)
    if options.config is None:
        raise ConfigError("which config? e.g. python -m symgraph.run examples/lstm_lm.yaml")
    reads = _mode(options) in ("predict", TRAIN)
    load = partial(load_config, schedules=SCHEDULES, strategies=STRATEGIES, synthetic=not reads)
    if options.compare:
        return _run(lambda: _candidates(options, load), options, _compare)
    if options.plan or options.explain:
        shown = _plan if options.plan else _explain
        return shown(load(options.config, options.overrides), options)
    work = _work(options)
    if launched_by_mpi(os.environ):
        return _run(lambda: _config(options, load, work), options, work)
    configs = _config(options, load, work)
    status = _supervise(configs, options) if work is _train else None
    return _run(lambda: configs, options, work) if status is None else status


def _work(options: argparse.Namespace) -> Work:
    """Return the work of the mode that is asked for."""
    modes: dict[str, Work] = {"profile": _profile, "search": _search, "predict": _predict}
    return modes.get(_mode(options), _train)


def _mode(options: argparse.Namespace) -> str:
    return next((mode for mode in MODES if getattr(options, mode)), TRAIN)


def _config(
    options: argparse.Namespace, load: Callable[[str, Sequence[str]], Config], work: Work
) -> dict[str, Config]:
    """Load the one config of a mode, by name."""
    from runtime.frontends.cli.supervisor import require_no_launcher

    config = load(options.config, options.overrides)
    if work is _train:
        require_no_launcher(config, options)
    return {options.config: config}


def _supervise(configs: Mapping[str, Config], options: argparse.Namespace) -> int | None:
    from runtime.frontends.cli.supervisor import supervise

    (config,) = configs.values()
    return supervise(config, options)


def _candidates(
    options: argparse.Namespace, load: Callable[[str, Sequence[str]], Config]
) -> dict[str, Config]:
    """Load the configs to compare, by name: files, or the candidates of one file."""
    from runtime.profiling.subjects import configs_of

    words = [options.config, *options.overrides]
    overrides = [word for word in words if "=" in word]
    return configs_of([word for word in words if "=" not in word], overrides, load)


def _require_one_mode(options: argparse.Namespace) -> None:
    """Raise ConfigError for arguments that exclude each other."""
    asked = [mode for mode in MODES if getattr(options, mode)]
    if len(asked) > 1:
        raise ConfigError(f"--{asked[0]} or --{_dashed(asked[1])}? one at a time")
    for option in OPTIONS:
        if getattr(options, option.name) is None or set(asked or [TRAIN]) & set(option.modes):
            continue
        if option.modes == (TRAIN,):
            raise ConfigError(f"{option.flag} is for training; leave out --{_dashed(asked[0])}")
        words = " or ".join(f"--{mode}" for mode in option.modes)
        raise ConfigError(f"{option.flag} goes with {words}; add that")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _measure_machine(options: argparse.Namespace) -> int:
    from runtime.profiling.calibration.machine import (
        devices_to_measure,
        machine_file,
        measure_machine,
        measuring_ranks,
        write_machine,
    )
    from runtime.training.signals import ended_by_signals

    path, words = options.measure_machine, [options.config, *options.overrides]
    if "=" in path:
        path, words = "-", [path, *words]
    contexts = devices_to_measure([word for word in words if word is not None])
    cluster = measuring_ranks(os.environ, contexts)
    try:
        if path != "-" and 0 in cluster.ranks:
            _require_machine_file(path)
        with ended_by_signals():
            machine = measure_machine(cluster, contexts)
        if path != "-" and 0 in cluster.ranks:
            write_machine(machine, path)
        cluster.close()
    except (Exception, KeyboardInterrupt) as error:
        status = report(error, with_traceback=options.traceback)
        cluster.leave(status)
        return status
    if 0 in cluster.ranks:
        told = machine_file(machine) if path == "-" else f"{wrapped(str(machine))}\n"
        print(told, end="", flush=True)
    return OK


def _require_machine_file(path: str) -> None:
    """Raise ConfigError if the file cannot be written, or exists and is not a machine file."""
    from partitioner.costs.machine_files import load_machine

    require_writable(path, "cannot write the machine file")
    if os.path.isfile(path):
        try:
            load_machine(path)
        except ConfigError as error:
            raise ConfigError(
                f"this would write over {path}, which is not a machine file ({error})"
            ) from None


def _plan(config: Config, options: argparse.Namespace) -> int:
    from runtime.backends.cpu.choice import use_blas
    from runtime.backends.device.processor import limit_blas
    from runtime.frontends.cli.plan_dump import write_plan
    from runtime.frontends.cli.plan_onnx import write_onnx
    from runtime.frontends.cli.plan_report import plan_report
    from runtime.profiling.calibration.pricing import fresh_pricing
    from runtime.training.job import job_of, training_plan

    for name in ("dump", "onnx"):
        if getattr(options, name) is not None:
            require_writable(getattr(options, name), f"cannot write --{name}")
    with use_blas(config.blas), limit_blas(1), _said_while_planning():
        planned = training_plan(config, fresh_pricing())
        text, figures = plan_report(job_of(planned))
    if options.dump is not None:
        write_plan(planned.training, options.dump)
    if options.onnx is not None:
        write_onnx(planned, options.onnx)
    print(wrapped(visible_lines(text)))
    if options.json:
        print(json.dumps(figures))
    return OK


def _said_while_planning(console: Console | None = None) -> Activity:
    """Return a context that says what takes long, on a console, or on stderr."""
    from symgraph.app.console import Activity, Console

    return Activity(console or Console(sys.stderr), "at work", "runtime")


def _explain(config: Config, options: argparse.Namespace) -> int:
    from runtime.backends.device.processor import limit_blas
    from runtime.frontends.cli.explain_report import explain_report
    from runtime.profiling.calibration.pricing import fresh_pricing
    from runtime.training.job import training_plan

    with limit_blas(1), _said_while_planning():
        text, figures = explain_report(training_plan(config, fresh_pricing()), options.explain)
    print(wrapped(visible_lines(text)))
    if options.json:
        print(json.dumps(figures))
    return OK


def _run(load: Callable[[], Mapping[str, Config]], options: argparse.Namespace, work: Work) -> int:
    """Do the work of a mode on the configs' clusters; return the exit status."""
    from runtime.training.clusters import Clusters
    from runtime.training.signals import ended_by_signals
    from runtime.training.trainer import agree_on_config
    from runtime.transports.base import launched_by_mpi
    from symgraph.app.console import Console

    clusters = Clusters(os.environ)
    try:
        configs = clusters.beside(clusters.read(load))
        here = {0 in clusters.of(config).ranks for config in configs.values()} == {True}
        stream, plain = sys.stderr if options.json else sys.stdout, launched_by_mpi(os.environ)
        console = Console(stream, quiet=not here, plain=plain)
        if any(name.startswith("cpu") for config in configs.values() for name in config.devices):
            _say_what_is_slow(console)
        asked = {"the mode": _mode(options), "--steps": options.steps}
        asked["--no-baseline"] = options.no_baseline
        for config in configs.values():
            agree_on_config(config, clusters.of(config), asked)
        with ended_by_signals(), _said_while_planning(console):
            summary = work(configs, options, clusters, console)
        clusters.close()
    except (Exception, KeyboardInterrupt) as error:
        status = report(error, with_traceback=options.traceback)
        clusters.leave(status, error)
        return status
    if here and options.json:
        print(json.dumps(summary), flush=True)
    stopped = summary.get("stopped")
    if stopped and here:
        say(stopped)
    return TERMINATED if stopped else OK


def _say_what_is_slow(console: Console) -> None:
    """Warn of what slows a run on CPUs down."""
    from runtime.backends.cpu import cached
    from runtime.backends.device.processor import slow_blas_warning

    warning = slow_blas_warning(dict(os.environ))
    if warning:
        console.line(f"warning: {warning}")
    compiled, folder = cached()
    if not compiled:
        once = f", once: they stay in {folder}" if folder else ""
        console.line(f"compiling kernels, which takes half a minute{once}")


def _profile(
    configs: Mapping[str, Config], options: argparse.Namespace, clusters: Clusters, console: Console
) -> dict[str, Any]:
    from runtime.frontends.cli.commands import Outputs, profile
    from runtime.profiling.analysis.record import STEPS

    (config,) = configs.values()
    files = Outputs(options.trace, options.save_costs, options.report)
    steps = options.steps or STEPS
    alone = not options.no_baseline
    return profile(config, clusters, console, steps=steps, outputs=files, baseline=alone)


def _compare(
    configs: Mapping[str, Config], options: argparse.Namespace, clusters: Clusters, console: Console
) -> dict[str, Any]:
    from runtime.frontends.cli.commands import compare_all
    from runtime.profiling.analysis.record import STEPS

    return compare_all(
        configs,
        clusters.of_rank,
        console,
        steps=options.steps or STEPS,
        report=options.report,
        baseline=not options.no_baseline,
    )


def _search(
    configs: Mapping[str, Config], options: argparse.Namespace, clusters: Clusters, console: Console
) -> dict[str, Any]:
    from runtime.frontends.cli.commands import WINNER, search_best
    from runtime.profiling.analysis.record import STEPS

    ((source, config),) = configs.items()
    if os.path.realpath(options.winner or WINNER) == os.path.realpath(source):
        raise ConfigError(f"--winner {source} would write over the config that is searched")
    return search_best(
        config,
        clusters,
        console,
        steps=options.steps or STEPS,
        winner=options.winner or WINNER,
        source=source,
        baseline=not options.no_baseline,
    )


def _predict(
    configs: Mapping[str, Config], options: argparse.Namespace, clusters: Clusters, console: Console
) -> dict[str, Any]:
    from runtime.frontends.cli.predict import predict
    from runtime.training.clusters import transport_of

    (config,) = configs.values()
    found = predict(config, clusters.of(config), console, options.predict)
    return found | {"transport": transport_of(config, os.environ)}


def _train(
    configs: Mapping[str, Config], options: argparse.Namespace, clusters: Clusters, console: Console
) -> dict[str, Any]:
    from runtime.backends.cpu.choice import use_blas
    from runtime.training.clusters import transport_of
    from runtime.training.flight import flight_recorder
    from runtime.training.supervised import SupervisorLink

    (config,) = configs.values()
    cluster = clusters.of(config)
    if 0 in cluster.ranks:
        _require_logs(options)
    with (
        use_blas(config.blas),
        closing(SupervisorLink(os.environ, cluster.ranks)) as link,
        flight_recorder(config, cluster) as recorder,
    ):
        link.asked = recorder.asked
        summary = _fit(config, recorder, link, console, (options.log, options.tensorboard))
    return summary | {"transport": transport_of(config, os.environ)}


def _require_logs(options: argparse.Namespace) -> None:
    """Raise ConfigError if the log or the folder of events cannot be written."""
    if options.log is not None:
        require_writable(options.log, "cannot write the log")
    if options.tensorboard is not None:
        require_folder(options.tensorboard, "cannot write events to")


def _introduce(job: Job, data: Dataset, console: Console) -> None:
    """Print the data, the model and its devices before training."""
    from runtime.frontends.cli.plan_report import how
    from symgraph.core.units import count_text

    placement = job.training.placement
    devices = ", ".join(map(str, placement.devices))
    console.line(data.about())
    console.line(
        f"{job.config.model}: {count_text(placement.stages, 'stage')} on {devices}, "
        f"{count_text(len(job.training.sizes), 'micro-batch')}, {how(job.training)}"
    )
    if job.training.uncut_reason:
        console.line(f"note: {job.training.uncut_reason}")
    idle = set(placement.devices) - {placement.devices[r] for r in placement.rank_of}
    if idle:
        console.line(f"note: nothing is placed on {', '.join(map(str, sorted(idle)))}")


def _fit(
    config: Config,
    recorder: FlightRecorder,
    link: SupervisorLink,
    console: Console,
    files: tuple[str | None, str | None],
) -> dict[str, Any]:
    """Train as configured, showing progress on rank 0; return the summary."""
    from runtime.backends.device.processor import limit_blas
    from runtime.profiling.calibration.pricing import CostCache
    from runtime.training.data.table import load_data
    from runtime.training.job import devices_of, plan_facts, prepare, require_loss
    from runtime.training.trainer import Trainer, blas_threads

    cluster = recorder.cluster
    job = prepare(config, CostCache().on(cluster, devices_of(config)))
    require_loss(job)
    link.tell(plan=plan_facts(job))
    data = load_data(config)
    _introduce(job, data, console)
    with limit_blas(blas_threads(config, cluster)):
        trainer = Trainer(job, cluster, data)
        recorder.follow(trainer.training, trainer.evaluation)
        path = trainer.resume()
        if path is not None:
            console.line(trainer.nothing_left or f"going on from {path}")
        link.tell(resumed=trainer.training.steps)
        try:
            summary = _steps(trainer, link, console, files if 0 in cluster.ranks else (None, None))
        except Exception:
            if trainer.trained is not None:
                _show(trainer.trained, data.unit, console)
                console.line(f"training has ended, its evaluation failed; {trainer.where_saved}")
            raise
    if not summary["stopped"]:
        _show(summary, data.unit, console)
    return summary | {"data": data.name}


def _steps(
    trainer: Trainer, link: SupervisorLink, console: Console, files: tuple[str | None, str | None]
) -> dict[str, Any]:
    """Train to the end, with the figures of steps in the log, the events and the progress."""
    from runtime.training.trainer import perplexity
    from symgraph.app.step_log import EventLog, JsonLog

    limit, done = trainer.job.config.train.seconds, trainer.training.steps
    unit = trainer.data.unit
    log, events = files
    after = done if done or link.attempt > 1 else None
    with (
        JsonLog(log, after) as lines,
        EventLog(events, after) as scalars,
        console.progress(
            trainer.total_steps, limit, unit, step=done, count=trainer.last.count
        ) as progress,
    ):

        def on_step(p: Progress) -> None:
            progress.update(p.step, p.count, p.loss, left_out=p.scaling.get("skipped", 0) > 0)
            link.progress(p.step, p.seconds)
            figures = {"loss": p.loss} if trainer.job.losses else {}
            if unit == "tokens":
                figures["perplexity"] = perplexity(p.loss)
            figures |= {f"{unit}_per_second": p.per_second, **p.scaling}
            lines.write(step=p.step, seconds=p.seconds, **{unit: p.count}, **figures)
            scalars.write(step=p.step, **figures)

        def on_evaluation(step: int, figures: Figures) -> None:
            progress.evaluation(step, figures)
            named = {f"held_out_{name}": value for name, value in figures.items()}
            lines.write(step=step, **named)
            scalars.write(step=step, **named)

        def on_save(step: int, stall: float) -> None:
            lines.write(step=step, checkpoint_stall=stall)

        return trainer.fit(on_step, on_evaluation, on_save)


def _show(summary: dict[str, Any], unit: str, console: Console) -> None:
    from symgraph.core.units import seconds_text

    ran = summary["steps_this_run"] > 0
    if ran:
        _show_stages(summary["stages"], console)
    rows: dict[str, object] = {f"held-out {n}": value for n, value in summary["held_out"].items()}
    if not rows and summary["train_loss"] is not None:
        rows["loss of the last step"] = summary["train_loss"]
    rows |= {name: _of_runs(summary, name) for name in ("steps", unit)}
    if summary["skipped_steps"]:
        rows["updates left out"] = summary["skipped_steps"]
    if ran:
        rows[f"{unit} a second"] = summary[f"{unit}_per_second"]
        rows["step"] = seconds_text(summary["step_seconds"])
    console.summary(rows | step_rows(summary) | _saved(summary))


def _of_runs(summary: dict[str, Any], name: str) -> object:
    """Return a count of all runs, and how many of it are this one's if there are others'."""
    whole, own = summary[name], summary[f"{name}_this_run"]
    return whole if own in (0, whole) else f"{whole:,}, {own:,} of them in this run"


def _show_stages(stages: Sequence[Mapping[str, Any]], console: Console) -> None:
    from symgraph.core.units import bytes_text, count_text, flops_text, seconds_text

    console.table(
        "stages",
        (
            "stage",
            "device",
            "time a step",
            "work",
            "parameters",
            "memory predicted",
            "memory measured",
            "sent a step",
        ),
        [
            (
                s["stage"],
                s["device"],
                seconds_text(s["seconds"]),
                flops_text(s["flops"]),
                bytes_text(s["parameter_bytes"]),
                bytes_text(s["peak_bytes_predicted"]),
                None if s["peak_bytes_measured"] is None else bytes_text(s["peak_bytes_measured"]),
                f"{bytes_text(s['bytes_sent'])} in {count_text(s['messages'], 'message')}",
            )
            for s in stages
        ],
    )


def step_rows(summary: dict[str, Any]) -> dict[str, str]:
    """Return the figures of a step that are known if all are alike.

    One device makes the runs of all devices one after another: if they take less than a step, it
    is faster.
    """
    from symgraph.core.units import seconds_text

    if summary["predicted_step_seconds"] is None:
        return {}
    found = {
        "step predicted from the stages' times": seconds_text(summary["predicted_step_seconds"]),
        "bubble": f"{summary['bubble_fraction']:.1%} of all devices' time",
    }
    used = {stage["device"] for stage in summary["stages"]}
    busy = (1 - summary["bubble_fraction"]) * len(summary["devices"]) * summary["step_seconds"]
    if len(used) > 1 and busy < summary["step_seconds"]:
        found["one device"] = (
            f"faster: it makes all runs in {seconds_text(busy)}; `symgraph profile` compares"
        )
    return found


def _saved(summary: dict[str, Any]) -> dict[str, str]:
    """Return what saving during training has cost, if anything was saved."""
    from symgraph.core.units import seconds_text

    stall = summary["checkpoint_stall"]
    if stall is None:
        return {}
    of_step = f", {stall['of_step']:.1%} of a step" if stall["of_step"] is not None else ""
    return {"a checkpoint stalls training for": f"{seconds_text(stall['seconds'])}{of_step}"}


if __name__ == "__main__":
    sys.exit(main())
