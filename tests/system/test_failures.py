"""Failures on threads (cases X14 and 18): the first error names its place, and all ranks stop."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from runtime.engine.optimizer_step import OptimizerStep
from runtime.engine.session import initialize
from runtime.engine.worker import Worker
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.transports import ThreadCluster, Transport
from symgraph.core.context import cpu
from symgraph.core.errors import PeerFailed, RunError
from symgraph.core.types import Array
from symgraph.frontend.init import Uniform
from tests.helpers.faults import GROUPS, PHASES, FaultySGD, build

RANKS = len(GROUPS)
STEP = 2  # the step that fails
PATIENT = 60.0

# What the failing rank was at, by phase: an instruction of its stage, and the node.
WHERE = {
    "forward": r"{rank}F0 \(step 2\), node 'fault_{group}'",
    "backward": r"{rank}B0 \(step 2\), node 'fault_{group}_grad0'",
    "update": r"U{rank} \(step 2\), node '{parameter}'",
}
# What others wait in: an instruction, the step, and a value.
WAIT = r"(R\d+\.\d+|D\d[FB]\d|C) \(step \d\): (\w+( of rank \d)?|the norms and losses)"
PARAMETERS = ("embed_weight", "hidden_weight", "decode_weight")


def planned(**fault: str) -> Plan:
    model = build(4, 3, 20, **fault, step=STEP)
    devices = tuple(map(cpu, range(RANKS)))
    groups = dict(zip(GROUPS, devices, strict=True))
    options = Options(groups, devices[0], devices, "1f1b", 2, update=True)
    dtypes = {"embed_weight": "float32"}
    return plan(model.symbol, model.feeds, options, wrt=None, dtypes=dtypes)


def train(cluster: ThreadCluster, made: Plan, heard: dict[int, Exception]) -> dict[str, Array]:
    """Some steps; what each rank raised goes to `heard`. The weights after it."""
    arrays = initialize(made, cluster, Uniform(0.5), seed=1)
    words = np.random.default_rng(0).integers(0, 20, (2, 3, 4)).astype("int32")
    feeds = dict(zip(("data", "label"), words, strict=True))

    def work(end: Transport) -> None:
        worker = Worker(made, end.rank, arrays[end.rank])
        updater = OptimizerStep(made, FaultySGD(0.1), 1.0)
        try:
            for step in range(STEP + 2):
                worker.step(end, feeds, step=step, updater=updater)
        except RunError as error:
            heard[end.rank] = error
            raise

    cluster.run(work)
    return {name: a for of_rank in arrays.values() for name, a in of_rank.items()}


def rank_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("symgraph-")]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("rank", range(RANKS))
def test_all_ranks_stop_and_name_the_place(phase, rank):
    heard: dict[int, Exception] = {}
    at = WHERE[phase].format(rank=rank, group=GROUPS[rank], parameter=PARAMETERS[rank])
    failure = rf"rank {rank} failed at {at}: RuntimeError: injected"
    with ThreadCluster(RANKS, PATIENT) as cluster:
        with pytest.raises(RunError, match=f"^{failure}") as caught:
            train(cluster, planned(where=GROUPS[rank], phase=phase), heard)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert sorted(heard) == list(range(RANKS))
        for other in {*range(RANKS)} - {rank}:
            assert isinstance(heard[other], PeerFailed)
            waited = rf"rank {other} stopped while waiting for .* \({WAIT}\)"
            assert re.fullmatch(f"{waited}: {failure}", str(heard[other])), heard[other]
    assert rank_threads() == []


@pytest.mark.parametrize("phase", PHASES)
def test_a_later_run_on_the_same_cluster_is_not_touched(phase):
    with ThreadCluster(RANKS, PATIENT) as cluster:
        want = train(cluster, planned(), {})
    with ThreadCluster(RANKS, PATIENT) as cluster:
        with pytest.raises(RunError, match="injected"):
            train(cluster, planned(where="b", phase=phase), {})
        got = train(cluster, planned(), {})
    assert {n: a.tobytes() for n, a in got.items()} == {n: a.tobytes() for n, a in want.items()}


def test_an_error_before_any_instruction_stops_all_ranks():
    """X14 during bind: a rank that cannot even build its worker."""

    def work(end: Transport) -> None:
        end.waiting_for("the start")
        if end.rank == 2:
            raise MemoryError("no room for the weights")
        end.exchange("ready")

    with ThreadCluster(RANKS, PATIENT) as cluster, pytest.raises(MemoryError, match="no room"):
        cluster.run(work)
    assert rank_threads() == []
