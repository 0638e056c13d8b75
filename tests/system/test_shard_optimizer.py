"""Optimizer arrays sharded over replicas (ZeRO-1): the same bits, in less memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import symgraph as sg
from partitioner.cutting.replicas import buckets
from runtime.backends.cpu.gemm import available
from runtime.backends.device.arrays import address, on_host
from runtime.backends.scratch import packed_weights
from runtime.engine.rank import RankResources
from runtime.engine.session import Session, initialize
from runtime.engine.worker import Worker
from runtime.planning.planner import plan
from runtime.schedule.instructions import WEIGHTS, Collective, Update
from runtime.schedule.message_costs import replica_sum_seconds, replica_weight_seconds
from runtime.schedule.replay import Link
from runtime.training.checkpoints.sessions import save_checkpoint
from runtime.training.checkpoints.state import restore
from runtime.training.checkpoints.tensors import Reader
from runtime.transports import Cluster, ThreadCluster
from symgraph.core.context import cpu, gpu
from symgraph.core.errors import ConfigError, RunError, ScheduleError
from symgraph.frontend.optimizer import SGD, Optimizer
from symgraph.passes.loss_scale import LossScale
from tests.fakes.fake_cluster import FakeCluster
from tests.helpers.gpus import STAND_IN
from tests.helpers.small_lm import losses, write_bucketed, write_config
from tests.mpi.launch import launch, needs_mpi
from tests.system.test_replicated import feeds, network, placed

RULES: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.2},
    "momentum": {"learning_rate": 0.2, "momentum": 0.9, "wd": 0.01},
    "nag": {"learning_rate": 0.2, "momentum": 0.9},
    "adam": {"learning_rate": 0.05, "wd": 0.01, "clip_gradient": 0.1},
    "rmsprop": {"learning_rate": 0.01, "centered": True},
}
TWO = {"hidden": [cpu(1), cpu(0)]}
THREE = {"hidden": [cpu(2), cpu(0), cpu(1)]}
# Copies on one rank, and two groups of which each has ranks of its own.
FOUR = {"hidden": [cpu(0), cpu(1), cpu(0)], "decode": [cpu(3), cpu(2)]}
PLACES = {"two": (TWO, 2), "three": (THREE, 3), "four": (FOUR, 4)}


def rule(name: str) -> Optimizer:
    return sg.optimizer.create({"momentum": "sgd"}.get(name, name), **RULES[name])


def session(
    cluster: Cluster,
    where: dict[str, Any],
    optimizer: Optimizer,
    *,
    shard: bool,
    clip: float | None = None,
    dtype: str = "float32",
    tied: bool = False,
    **options: Any,
) -> Session:
    case = network(dropout=0.3, tied=tied)
    made = replace(
        placed(cluster.size, **where),
        **{"update": True, "micro_batches": 2, "schedule": "1f1b", **options},
        slots=len(optimizer.slots()),
        shard_optimizer=shard,
        clips=clip is not None,
    )
    wrt = case.trained()
    planned = plan(case.symbol, case.specs, made, wrt=wrt, dtypes=dict.fromkeys(wrt, dtype))
    arrays = initialize(planned, cluster, sg.init.Uniform(0.5), seed=3)
    return Session(planned, cluster, arrays, optimizer=optimizer, clip=clip)


@dataclass
class Trained:
    bits: dict[str, bytes]
    figures: list[dict[str, float]]
    copies: list[dict[str, bytes]]


def trained(cluster: Cluster, *args: Any, steps: int = 6, **given: Any) -> Trained:
    with cluster:
        run = session(cluster, *args, **given)
        figures = [run.step(feeds(i)) for i in range(steps)]
        copies = [
            {n: on_host(a).tobytes() for n, a in own.items()}
            for _, own in sorted(run.arrays.items())
        ]
        return Trained({n: a.tobytes() for n, a in run.parameters().items()}, figures, copies)


def both(places: str, name: str, **given: Any) -> tuple[Trained, Trained]:
    groups, ranks = PLACES[places]
    runs = [
        trained(ThreadCluster(ranks), groups, rule(name), shard=shard, **given)
        for shard in (False, True)
    ]
    return runs[0], runs[1]


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize("name", RULES)
def test_no_bit_changes(name, places, clip):
    whole, sharded = both(places, name, clip=clip)
    assert sharded == whole


def test_threads_hold_a_replicated_weight_once():
    with ThreadCluster(2) as cluster:
        run, whole = (session(cluster, TWO, rule("sgd"), shard=shard) for shard in (True, False))
        one, each = (
            {id(a): a.nbytes for r in (0, 1) for a in s.arrays[r].values()} for s in (run, whole)
        )
        assert len(each) - len(one) == len({*run.plan.shared_copies.values()}) == 2
        planned = [sum(m.parameters for m in s.plan.memory) for s in (run, whole)]
        assert planned == [sum(one.values()), sum(each.values())]
        with pytest.raises(RunError, match=r"replicas of 'fc_.*' have one array, but each of them"):
            Session(whole.plan, cluster, run.arrays, optimizer=rule("sgd"))


@pytest.mark.skipif(not available(), reason="packed products need AVX-512, or AVX2 and FMA")
@pytest.mark.parametrize("places", PLACES)
def test_threads_pack_a_replicated_weight_once(places):
    groups, ranks = PLACES[places]
    with ThreadCluster(ranks) as cluster:
        run = session(cluster, groups, rule("sgd"), shard=True, micro_batches=1)
        for i in range(2):
            run.step(feeds(i))  # the second packs what the first has updated
        planned = packed_weights(run.plan.partition, {*run.plan.parameters}, (), one_array=True)
        weights = {w for of_rank in planned for w in of_rank.values()}
        assert {w.shared for w in weights if w.name.startswith("fc_")} == {True}
        packs = [p for w in run.workers.values() for p in w.packs.buffers.values()]
        assert len({address(p.buffer) for p in packs}) == len(weights) == sum(p.own for p in packs)
        assert len(packs) == sum(len({*of_rank.values()}) for of_rank in planned) > len(weights)


@pytest.mark.skipif(not available(), reason="packed products need AVX-512, or AVX2 and FMA")
def test_a_process_of_one_rank_packs_for_itself():
    """By a plan for threads, rank 0 looked for what rank 1 packs, in another process: KeyError."""
    with ThreadCluster(2) as cluster:
        run = session(cluster, TWO, rule("sgd"), shard=True, micro_batches=1)
        for rank in (0, 1):
            alone = Worker(run.plan, rank, run.arrays[rank], resources=RankResources(rank))
            alone.bind()
            assert alone.packs.buffers
            assert all(packed.own for packed in alone.packs.buffers.values())


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("first", [2.0**8, 2.0**26])
def test_no_bit_changes_with_a_loss_scale_that_skips_steps(first, clip):
    scale = LossScale(first, dynamic=True)
    given = {"precision": "float16", "loss_scale": scale, "clip": clip}
    whole, sharded = both("three", "adam", **given)
    assert sharded == whole
    assert (whole.figures[0]["skipped"] > 0) == (first > 2.0**20)


def test_tied_parameters_and_zero_bubble_schedules():
    whole, sharded = both("four", "momentum", tied=True, schedule="zb-h1", dtype="float64")
    assert sharded == whole


@pytest.mark.every(4)
@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize("places", ["three", "four"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_many_buckets_on_late_ranks(monkeypatch, places, clip):
    """Each parameter is a bucket of its own; ranks are late by turns.

    A rank once wrote a bucket's sums where another, in no later bucket with it, still read.
    """
    groups, ranks = PLACES[places]
    want = trained(ThreadCluster(ranks), groups, rule("adam"), shard=False, clip=clip)
    monkeypatch.setattr("partitioner.cutting.replicas.BUCKET_BYTES", 1)
    for shard in (True, False):
        cluster = FakeCluster(ranks, 0, seed=ranks, delay=1e-4)
        assert trained(cluster, groups, rule("adam"), shard=shard, clip=clip) == want


@pytest.mark.slow
@pytest.mark.parametrize("shared_gpu", [STAND_IN], indirect=True)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_on_cards_no_bit_changes_either(shared_gpu, clip):
    cards = {"groups": {"embed": gpu(0), "hidden": (gpu(1), gpu(0)), "decode": gpu(1)}}
    cards |= {"default": gpu(0), "devices": (gpu(0), gpu(1))}
    whole, sharded = both("two", "adam", clip=clip, **cards)
    assert sharded == whole


# -- memory --------------------------------------------------------------------------------------


def state_bytes(run: Session) -> list[int]:
    return [
        sum(a.nbytes for slots in run.updaters[r].states.values() for a in slots.values())
        for r in run.cluster.ranks
    ]


@pytest.mark.every(4)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("places", PLACES)
def test_memory_is_counted_as_it_is_planned(places, lent, clip):
    groups, ranks = PLACES[places]
    found = {}
    for shard in (False, True):
        with ThreadCluster(ranks) as cluster:
            given = {"shard": shard, "clip": clip, "shared_memory": lent}
            run = session(cluster, groups, rule("adam"), **given)
            run.step(feeds(0))
            held = [run.updaters[rank].held for rank in cluster.ranks]
            assert held == [memory.optimizer for memory in run.plan.memory]
            found[shard] = state_bytes(run)

    assert sum(found[True]) < sum(found[False])


def test_copies_together_hold_the_arrays_once():
    everything = {g: [cpu(0), cpu(1), cpu(2), cpu(3)] for g in ("embed", "hidden", "decode")}
    held = {}
    for shard in (False, True):
        with ThreadCluster(4) as cluster:
            run = session(cluster, everything, rule("adam"), shard=shard, micro_batches=1)
            run.step(feeds(0))
            held[shard] = state_bytes(run)
            weights = sum(a.nbytes for a in run.parameters().values())
    assert held[False] == [2 * weights] * 4
    assert sum(held[True]) == 2 * weights
    assert max(held[True]) <= min(held[True]) + 4 * 2 * len(run.plan.grads)  # whole elements


def test_what_does_not_fit_with_whole_arrays_fits_with_shards():
    with ThreadCluster(3) as cluster:
        peaks = [
            max(m.peak for m in session(cluster, THREE, rule("adam"), shard=s).plan.memory)
            for s in (False, True)
        ]
        limit = sum(peaks) // 2
        session(cluster, THREE, rule("adam"), shard=True, memory=limit)
        with pytest.raises(ScheduleError, match="more than the limit"):
            session(cluster, THREE, rule("adam"), shard=False, memory=limit)


# -- programs, predictions, refusals -------------------------------------------------------------


def test_weights_are_spread_after_the_updates_and_cost_what_sums_do():
    link = Link(latency=1e-3, bandwidth=1e6)
    seconds = {}
    with ThreadCluster(3) as cluster:
        for clip in (None, 1.0):
            made = session(cluster, THREE, rule("adam"), shard=True, clip=clip).plan
            for program in made.schedule.programs:
                tail = list(program)[-2:]
                assert isinstance(tail[0], Update)
                assert tail[1] == Collective(WEIGHTS)
            assert len(buckets(made.partition)) == 1
            spread = made.overheads().spreads_sums
            ((_, sums),) = replica_sum_seconds(made.partition, lambda a, b: link, spread=spread)
            weights = replica_weight_seconds(made.partition, lambda a, b: link)
            seconds[clip] = sums + weights
        ((_, whole),) = replica_sum_seconds(made.partition, lambda a, b: link)
    assert seconds[None] == whole
    assert seconds[1.0] == whole + weights


class Normed(SGD):
    """A rule with a quantity of the whole parameter."""

    def apply(self, xp: Any, name: str, weight: Any, grad: Any, *args: Any, **kw: Any) -> None:
        super().apply(xp, name, weight, grad / np.linalg.norm(grad), *args, **kw)


def test_a_rule_that_needs_whole_parameters_is_refused():
    with ThreadCluster(2) as cluster:
        session(cluster, TWO, Normed(0.1), shard=False)
        with pytest.raises(ConfigError, match="shard_optimizer: Normed needs whole parameters"):
            session(cluster, TWO, Normed(0.1), shard=True)


# -- checkpoints ---------------------------------------------------------------------------------


def stored(folder: Path) -> dict[str, bytes]:
    """The tensors of a checkpoint, whichever file has them."""
    with Reader(folder) as reader:
        return {name: reader.read(name, "").tobytes() for name in reader.holder}


def test_checkpoints_are_whole_and_resume_on_any_number_of_replicas(tmp_path):
    """Four steps in one piece, and in two with other replicas, with and without sharding."""
    paths = {}
    for name, shard, groups, ranks in (("whole", False, TWO, 2), ("parts", True, TWO, 2)):
        with ThreadCluster(ranks) as cluster:
            run = session(cluster, groups, rule("adam"), shard=shard, clip=0.5)
            for i in range(2):
                run.step(feeds(i))
            paths[name] = save_checkpoint(run, tmp_path / name, keep=1)
            for i in (2, 3):
                run.step(feeds(i))
            paths[name + " end"] = save_checkpoint(run, tmp_path / (name + " end"), keep=1)
    assert stored(paths["whole"]) == stored(paths["parts"])
    assert stored(paths["whole end"]) == stored(paths["parts end"])
    swapped = {"hidden": [cpu(0), cpu(1)]}
    for source, shard, groups in (("parts", False, swapped), ("whole", True, swapped)):
        with ThreadCluster(2) as cluster:
            run = session(cluster, groups, rule("adam"), shard=shard, clip=0.5)
            restore(run, paths[source])
            for i in (2, 3):
                run.step(feeds(i))
            again = save_checkpoint(run, tmp_path / f"{source} again", keep=1)
        assert stored(again) == stored(paths["whole end"])
    ends = []
    for shard in (False, True):  # three replicas add up in another order: compare with themselves
        with ThreadCluster(3) as cluster:
            run = session(cluster, THREE, rule("adam"), shard=shard, clip=0.5)
            restore(run, paths["parts"])
            for i in (2, 3):
                run.step(feeds(i))
            ends.append(stored(save_checkpoint(run, tmp_path / f"three {shard}", keep=1)))
    assert ends[0] == ends[1]


MPI = pytest.param(2, marks=needs_mpi)


@pytest.mark.parametrize("train", ["adam", "sgd, momentum: 0.9, clip_global_norm: 0.5"])
@pytest.mark.parametrize("processes", [MPI])
def test_processes_of_their_own_have_the_bits_of_threads(tmp_path, processes, train):
    path = write_config(tmp_path, f"optimizer: {train}, learning_rate: 0.01, steps: 5")
    more = ("pipeline.micro_batches=3", "group2ctx.layer0=[cpu(1), cpu(0)]")
    ended = launch(processes, "symgraph.run", path, *more, "train.shard_optimizer=true", "--json")
    assert ended.status == 0, str(ended)
    assert f'"loss": {losses(path, *more)!r}' in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("clip", [pytest.param("null", marks=pytest.mark.slow), "0.5"])
def test_buckets_and_a_grid_from_a_config(tmp_path, clip):
    """Replicas of whole pipelines, whose batches are of several lengths."""
    path = write_bucketed(tmp_path)
    grid = (
        "devices=[cpu(0), cpu(1), cpu(2), cpu(3)]",
        "partition.data_axis=2",
        "pipeline.micro_batches=2",
        "train.steps=4",
        f"train.clip_global_norm={clip}",
    )
    assert losses(path, *grid, "train.shard_optimizer=true") == losses(path, *grid)
