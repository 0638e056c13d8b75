"""The baseline: one device as its user would run it, and the words for what a partition gains."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.planning.costs.files import load_prices
from runtime.planning.costs.prices import always
from runtime.profiling.trials import compare as module
from runtime.profiling.trials.baseline import (
    ONE,
    Gain,
    baseline_of,
    baselines_of,
    is_baseline,
    plan_baseline,
)
from runtime.profiling.trials.compare import alternate, compare, gain_of
from runtime.profiling.trials.comparison import Compared, Comparison
from runtime.profiling.trials.outcome import Figures, Outcome
from runtime.training.clusters import Clusters
from runtime.training.job import training_plan
from symgraph.app.config import Config
from symgraph.core.errors import LimitError
from tests.helpers.profiles import config

SHARDED = (
    "devices=[cpu(1), cpu(0)]",
    "group2ctx.decode=[cpu(0), cpu(1)]",
    "partition.shards={decode: 2}",
    "train.shard_optimizer=true",
    "pipeline.time_segment=2",
    "transport=mpi",
    "blas_threads=1",
)


# -- which config it is ----------------------------------------------------------------------------


def test_one_device_runs_the_whole_batch_with_all_threads(tmp_path):
    """With the 4 micro-batches of the pipeline it would be slower than it has to be."""
    given = config(tmp_path, *SHARDED)
    one = baseline_of(given)
    assert one.devices == ("cpu(1)",)
    assert one.pipeline.micro_batches == 1
    assert one.pipeline.time_segment is None
    assert (one.blas_threads, one.transport) == ("auto", "threads")
    assert (one.model, one.args, one.data) == (given.model, given.args, given.data)
    assert is_baseline(one, given)
    plan = training_plan(one).training
    assert (plan.placement.stages, len(plan.sizes)) == (1, 1)


def test_one_device_is_the_fastest(tmp_path):
    assert baseline_of(config(tmp_path, "devices=[cpu(0), gpu(1)]", "group2ctx={}")).devices == (
        "gpu(1)",
    )
    machine = tmp_path / "machine.yaml"
    machine.write_text(
        "devices: {gpu(0): {flops: 1 TFLOP/s}, gpu(1): {flops: 2 TFLOP/s}}\n"
        "links: {node: {latency: 1us, bandwidth: 10GB/s}}\n"
    )
    there = (f"machine={machine}", "devices=[gpu(0), gpu(1)]", "group2ctx={}")
    given = config(tmp_path, "partition.costs=null", *there)
    assert baseline_of(given).devices == ("gpu(1)",)


def test_one_device_is_the_fastest_that_holds_the_network(tmp_path):
    machine = tmp_path / "machine.yaml"
    machine.write_text(
        "devices:\n"
        "  cpu(0): {flops: 1 GFLOP/s, memory: 8 GiB}\n"
        "  cpu(1): {flops: 3 GFLOP/s, memory: 1 KiB}\n"
        "  cpu(2): {flops: 2 GFLOP/s, memory: 8 GiB}\n"
        "links: {node: {latency: 1us, bandwidth: 10GB/s}}\n"
    )
    there = ("devices=[cpu(0), cpu(1), cpu(2)]", "partition.strategy=auto")
    given = config(tmp_path, "partition.costs=null", f"machine={machine}", "group2ctx={}", *there)
    prices = always(load_prices(str(config(tmp_path).partition.costs)))  # unused
    assert plan_baseline(given, prices).config.devices == ("cpu(2)",)


ALONE = "devices=[cpu(0)]"


@pytest.mark.parametrize(
    ("overrides", "missing"),
    [
        ([], [ONE]),
        ([ALONE, "pipeline.micro_batches=1", "blas_threads=auto"], []),
        ([ALONE, "blas_threads=auto"], [ONE]),  # 4 micro-batches
        ([ALONE, "pipeline.micro_batches=1"], [ONE]),  # one thread
        ([ALONE, "pipeline.micro_batches=1", "blas_threads=auto", "train.dtype=float64"], [ONE]),
        (["train.dtype=float64"], [ONE, f"{ONE}: b"]),  # another network
    ],
)
def test_it_is_added_where_no_candidate_is_as_good(tmp_path, overrides, missing):
    configs = {"a": config(tmp_path), "b": config(tmp_path, *overrides)}
    assert list(baselines_of(configs)) == missing


def test_a_candidate_may_have_its_name(tmp_path):
    configs = {"a": config(tmp_path), ONE: config(tmp_path, ALONE)}
    assert list(baselines_of(configs)) == [f"{ONE}: a"]


def test_there_is_none_for_one_device(tmp_path):
    assert baselines_of({"a": config(tmp_path, ALONE)}) == {}


def test_a_memory_limit_makes_micro_batches_and_then_recomputation(tmp_path):
    one = baseline_of(config(tmp_path))
    prices = always(load_prices(str(one.partition.costs)))

    def planned(limit: int) -> Config:
        partition = one.partition.model_copy(update={"memory": limit})
        found = plan_baseline(one.model_copy(update={"partition": partition}), prices)
        assert max(memory.peak for memory in found.training.memory) <= limit
        assert is_baseline(found.config, config(tmp_path, f"partition.memory={limit}"))
        return found.config

    whole = plan_baseline(one, prices)
    assert len(whole.training.sizes) == 1
    peak = max(memory.peak for memory in whole.training.memory)
    assert planned(peak).pipeline.micro_batches == 1
    assert planned(peak - 1).pipeline.micro_batches > 1
    with pytest.raises(LimitError, match="smallest limit that works"):
        planned(1000)


# -- what it says ----------------------------------------------------------------------------------

TWO = ("cpu(0)", "cpu(1)")


@pytest.mark.parametrize(
    ("gain", "lines"),
    [
        (
            Gain(TWO, 12.1e-3, "cpu(0)", 16.2e-3, threads=2),
            [
                "2 devices: 1.34 times as fast as one device with both cores "
                "(12.1 ms beside 16.2 ms)",
                "one device: cpu(0), 1 micro-batch, 2 threads in matrix products",
            ],
        ),
        (  # it was "13.14 times as fast", because another program had one of the cores
            Gain(TWO, 6.07e-3, "cpu(0)", 79.8e-3, threads=2, slow=2.54, slow_alone=36.6),
            [
                "2 devices: 13.15 times as fast as one device with both cores "
                "(6.07 ms beside 79.8 ms)",
                "one device: cpu(0), 1 micro-batch, 2 threads in matrix products",
                "do not trust this gain: one device took 36.6 times as long as predicted, 2 "
                "devices 2.5 times, as other programs on its cores make the threads of its matrix "
                "products wait for each other",
            ],
        ),
        (
            Gain(TWO, 16.2e-3, "cpu(0)", 12.1e-3, threads=16, name="by hand"),
            [
                "does not pay: one device with all 16 cores is 1.34 times as fast as 2 devices "
                "(12.1 ms beside 16.2 ms)",
                "2 devices: by hand; one device: cpu(0), 1 micro-batch, 16 threads in matrix "
                "products",
            ],
        ),
        (
            Gain(TWO, 12.1e-3, "cpu(0)", 12.4e-3, clear=False, threads=1),
            [
                "no clear gain: a step takes 12.1 ms on 2 devices and 12.4 ms on one device with "
                "its only core, and their spreads overlap",
                "one device: cpu(0), 1 micro-batch, 1 thread in matrix products",
            ],
        ),
        (
            Gain(("gpu(0)", "gpu(1)", "gpu(2)"), 1e-3, "gpu(0)", 2e-3, micro_batches=4),
            [
                "3 devices: 2.00 times as fast as one device alone "
                "(1.00 ms beside 2.00 ms, both simulated)",
                "one device: gpu(0), 4 micro-batches to keep to the memory limit",
            ],
        ),
        (  # it was "with 16 threads in matrix products"
            Gain(("gpu(0)", "gpu(1)"), 2e-3, "gpu(0)", 1e-3, threads=16),
            [
                "does not pay: one device alone is 2.00 times as fast as 2 devices "
                "(1.00 ms beside 2.00 ms)",
                "one device: gpu(0), 1 micro-batch",
            ],
        ),
        (  # it was "2 devices", of which one had nothing to do
            Gain(TWO, 12.1e-3, "cpu(0)", 16.2e-3, threads=2, used=1),
            [
                "1 of 2 devices: 1.34 times as fast as one device with both cores "
                "(12.1 ms beside 16.2 ms)",
                "one device: cpu(0), 1 micro-batch, 2 threads in matrix products",
            ],
        ),
        (
            Gain(TWO, 1e-3, "cpu(0)", reason="5 MiB are too few"),
            ["2 devices: one device alone cannot hold this network: 5 MiB are too few"],
        ),
    ],
)
def test_the_first_line_is_whether_it_pays(gain, lines):
    assert gain.lines() == lines
    assert gain.figures()["verdict"] == lines[0]


def test_the_figures_of_a_gain():
    found = Gain(TWO, 0.5, "cpu(0)", 1.0, threads=2, name="by hand").figures()
    del found["verdict"]
    assert found == {
        "pays": True,
        "speedup": 2.0,
        "partition": "by hand",
        "partition_step_seconds": 0.5,
        "step_seconds": 1.0,
        "devices": ["cpu(0)"],
        "micro_batches": 1,
        "blas_threads": 2,
        "simulated": False,
    }
    assert Gain(TWO, 1.0, "cpu(0)", 0.5).pays is False
    assert Gain(TWO, 1.0, "cpu(0)", 0.5, clear=False).pays is None
    too_large = Gain(TWO, 1.0, "cpu(0)", reason="too large")
    assert (too_large.pays, too_large.speedup) == (True, None)


# -- rankings --------------------------------------------------------------------------------------


def measured(name: str, given: Config, speed: float, low: float, high: float) -> Compared:
    """A candidate that ran with these tokens per second: the median and the quartiles."""
    stages = [{"rank": 0}, {"rank": 1}]
    outcome = Outcome(None, {"micro_batches": 1, "blas_threads": 2, "stages": stages})
    figures = Figures(speed, high - low, 30 / speed, 0.0, 0.0, 1, 0, 1.0, 0.0)
    outcome.__dict__.update(quartiles=(low, high), figures=figures)
    return Compared(name, given, outcome)


def test_quartiles_are_those_of_the_steps_speeds():
    class Fixed:
        """A profile of five steps, predicted to take 2 s and 60 tokens each."""

        count, predicted_step, pace = 60.0, 2.0, None

        def every(self, *, predicted: bool = False) -> np.ndarray:
            return np.full(5, 2.0) if predicted else np.array([1.0, 2.0, 3.0, 4.0, 6.0])

    assert Outcome(Fixed(), {}).quartiles == (15.0, 30.0)


def test_there_is_no_clear_winner_if_spreads_overlap(tmp_path):
    """The range of the middle half of the steps, not the median, says who is faster."""
    two, one = config(tmp_path), baseline_of(config(tmp_path))
    ranking = (
        measured("a", two, 100, 95, 103),
        measured("b", two, 97, 90, 95),  # meets a's
        measured("c", two, 96, 93, 94.9),
        measured(ONE, one, 80, 60, 99),
    )
    found = Comparison(ranking, gain_of(ranking, []))
    assert found.ties == ("b", ONE)
    assert found.gain is not None
    assert found.gain.pays is None
    assert found.verdict() == [
        *found.gain.lines(),
        "no clear winner, as their spreads overlap: a; b; one device",
    ]
    assert found.verdict()[0].startswith("no clear gain: a step takes 300 ms on 2 devices and")
    assert Comparison((ranking[0], ranking[2])).verdict() == []


def test_the_gain_is_over_the_same_network(tmp_path):
    """A faster one device with another network, or with needless micro-batches, does not count."""
    two, one = config(tmp_path), baseline_of(config(tmp_path))
    ranking = [
        measured("other", baseline_of(config(tmp_path, "train.dtype=float64")), 300, 299, 301),
        measured("fast", two, 100, 99, 101),
        measured("slow", two, 90, 89, 91),
        measured("straw", config(tmp_path, ALONE), 85, 84, 86),
        measured(ONE, one, 50, 49, 51),
    ]
    gain = gain_of(ranking, [])
    assert gain is not None
    assert (gain.name, gain.speedup, gain.micro_batches, gain.threads) == ("fast", 2.0, 1, 2)
    assert gain_of(ranking[:4], []) is None
    assert gain_of(ranking[:1], []) is None
    gain = gain_of(ranking[:4], [(one, "it is too large")])
    assert gain is not None
    assert gain.lines() == ["2 devices: one device alone cannot hold this network: it is too large"]


class Turns:
    """A trial that writes down what it is asked to run."""

    def __init__(self, name: str, log: list[tuple[str, int, bool]]) -> None:
        self.name, self.log = name, log

    def run(self, steps: int, *, keep: bool = True) -> None:
        self.log.append((self.name, steps, keep))


def test_one_device_takes_turns_with_a_profile():
    """The first step of a turn does not count, and all count as many steps as were asked for."""
    log: list[tuple[str, int, bool]] = []
    alternate({name: Turns(name, log) for name in "ab"}, 6)
    assert [(name, steps) for name, steps, keep in log if keep] == [
        ("a", 4),
        ("b", 4),
        ("b", 2),
        ("a", 2),
    ]
    assert log[::2] == [(name, 1, False) for name in "abba"]


def test_a_network_that_one_device_cannot_hold_is_measured_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "one_device", lambda *args, **more: "it is too large")
    clusters = Clusters({})
    try:
        found = compare({"two": config(tmp_path)}, clusters.of, steps=1, warm_up=1, within=0.0)
    finally:
        clusters.close()
    assert [c.name for c in found.ranking] == ["two"]
    assert found.verdict() == [
        "2 devices: one device alone cannot hold this network: it is too large"
    ]


# -- over MPI --------------------------------------------------------------------------------------


class Rank:
    """A cluster of which this process is some rank."""

    def __init__(self, *ranks: int) -> None:
        self.ranks = ranks


def test_one_device_beside_two_ranks_is_for_rank_0(tmp_path):
    """Under mpiexec a candidate of one device was refused, as there are more ranks."""
    configs = {"two": config(tmp_path), "one": config(tmp_path, ALONE)}
    for rank in (0, 1):
        clusters = Clusters({"PMI_RANK": str(rank)})
        clusters._clusters["mpi", 2, ()] = Rank(rank)
        found = clusters.beside(configs)
        assert [c.transport for c in found.values()] == ["auto", "threads"]
        own = clusters.of_rank(found["one"])
        assert (own is None) == (rank == 1)
        if own is not None:
            assert list(own.ranks) == [0]
            own.close()
    alone = {"one": configs["one"]}
    assert clusters.beside(alone) == alone, "one device and two ranks is still an error"
