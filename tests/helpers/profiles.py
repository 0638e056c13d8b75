"""A profile of a small language model, measured once for all tests of profiling."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from partitioner.costs.cost import Caches, CostTable, Rates, Speed
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.analysis.record import Record
from runtime.profiling.report.text import profile_passages
from runtime.profiling.trials.trial import Trial
from runtime.schedule.instructions import Run
from runtime.transports import ThreadCluster
from symgraph.app.config import Config, load_config
from tests.helpers.small_lm import write_bucketed, write_config

STEPS = 5
BUCKETED = 12  # steps of the bucketed profile
RATES = Rates(1e10, 1e10)
ESTIMATES = CostTable(Speed(1e9, 1e-6, 1e10), RATES, Caches(1, 2), {}, {}, {})


def config(folder: Path, *overrides: str) -> Config:
    """The small model's config, with costs that need not be measured."""
    path = write_config(folder, "optimizer: sgd, learning_rate: 0.5, clip_global_norm: 5.0")
    priced = f"partition.costs={costs(folder)}"
    return load_config(str(path), [priced, "blas_threads=1", *overrides])


def costs(folder: Path) -> Path:
    """A file of costs that are estimated from counts of operations."""
    path = folder / "costs.json"
    path.write_text(ESTIMATES.to_json())
    return path


@cache
def small_profile(*overrides: str) -> Profile:
    """Some steps of the small model on two devices."""
    with TemporaryDirectory() as folder:
        given = config(Path(folder), *overrides)
        with ThreadCluster(len(given.devices)) as cluster:
            trial = Trial.of(given, cluster, steps=STEPS, warm_up=1)
            trial.run(STEPS)
            return trial.profile()


@cache
def bucketed_profile() -> Profile:
    """Some steps of two batches each, of three buckets, on two devices."""
    with TemporaryDirectory() as folder:
        priced = f"partition.costs={costs(Path(folder))}"
        given = load_config(str(write_bucketed(Path(folder))), [priced, "blas_threads=1"])
        with ThreadCluster(2) as cluster:
            trial = Trial.of(given, cluster, steps=BUCKETED)
            trial.run(BUCKETED)
            return trial.profile()


def said_of(profile: Profile) -> str:
    """What `--profile` says of the measured steps."""
    return "\n\n".join(passage.text for passage in profile_passages(profile))


def assert_calls_inside_runs(record: Record) -> None:
    """Every call, in its order, between start and end of its run."""
    for own, program in zip(record.ranks, record.plan.schedule.programs, strict=True):
        runs = [at for at, i in enumerate(program) if isinstance(i, Run)]
        assert [program[at].key for at in runs] == [run.key for run in own.runs]
        place = 0
        for at, run in zip(runs, own.runs, strict=True):
            count = len(run.calls)
            inside = slice(place, place + count)
            place += count
            assert (own.calls.start[:, inside] >= own.start[:, [at]]).all()
            assert (own.calls.end[:, inside] <= own.end[:, [at]]).all()
        assert place == own.calls.start.shape[1]
        assert (own.calls.start[:, 1:] >= own.calls.end[:, :-1]).all()
