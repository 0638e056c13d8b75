"""Helpers for tests that run plans: one step on a cluster, and the judge's answer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from partitioner.placement.group2ctx import Groups
from runtime.backends.device.arrays import device, on_host
from runtime.engine.worker import Worker
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.transports import Cluster, ThreadCluster, Transport
from runtime.transports.agreement import agree_on_plan
from symgraph.core.context import cpu
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.types import TensorType
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed, assemble
from symgraph.passes.gradients import gradients
from symgraph.passes.shards import Shard


class Result(NamedTuple):
    """Outputs of the whole batch and gradients of all parameters."""

    outputs: list[Any]
    grads: dict[str, Any]


class Case(NamedTuple):
    """A network with values for everything; feeds are split into micro-batches."""

    symbol: Symbol
    feeds: dict[str, np.ndarray]
    arrays: dict[str, np.ndarray]
    axes: Mapping[str, int] = MappingProxyType({})  # batch axes other than 0

    @property
    def specs(self) -> dict[str, Feed]:
        return {
            n: Feed(TensorType(a.shape, str(a.dtype)), self.axes.get(n, 0))
            for n, a in self.feeds.items()
        }

    @property
    def dtypes(self) -> dict[str, str]:
        return {n: str(a.dtype) for n, a in self.arrays.items()}

    @property
    def shapes(self) -> dict[str, Any]:
        return {n: a.shape for n, a in self.arrays.items()}

    def trained(self) -> list[str]:
        return [n for n in self.symbol.list_arguments() if n in self.arrays]


def on_devices(
    devices: int, groups: Groups, schedule: str = "gpipe", micro_batches: int = 1, **more: Any
) -> Options:
    """Options that place groups on that many CPU devices, each of which is a rank."""
    return Options(groups, cpu(0), tuple(map(cpu, range(devices))), schedule, micro_batches, **more)


def make_plan(case: Case, options: Options) -> Plan:
    given = {"shapes": case.shapes, "dtypes": case.dtypes}
    return plan(case.symbol, case.specs, options, wrt=case.trained(), **given)


def judge(case: Case, env: Env | None = None) -> Result:
    """The reference interpreter on the whole batch: no placement, cut, schedule or splitting."""
    values = case.feeds | case.arrays
    shapes = {n: a.shape for n, a in values.items()}
    graph = lower(case.symbol, shapes, {n: str(a.dtype) for n, a in values.items()})
    both = gradients(graph, case.trained(), heads=False)
    results = evaluate(both.graph, values, env or Env(train=True))
    count = len(graph.outputs)
    return Result(results[:count], dict(zip(both.grads, results[count:], strict=True)))


def run_step(
    made: Plan, case: Case, cluster: Cluster, step: int = 0, times: int = 1
) -> dict[int, Result]:
    """A training step, made so many times; each local rank's outputs (None: made elsewhere) and
    gradients of the last time.
    """
    found: dict[int, Result] = {}

    def work(transport: Transport) -> None:
        agree_on_plan(transport, made)
        here = device(made.partition.placement.devices[transport.rank])
        with here.use():
            arrays = {n: here.put(a) for n, a in case.arrays.items()}
        worker = Worker(made, transport.rank, arrays)
        for _ in range(times):
            worker.step(transport, case.feeds, train=True, step=step)
        found[transport.rank] = local_result(made, worker)

    cluster.run(work)
    return found


def local_result(made: Plan, worker: Worker) -> Result:
    outputs = [
        assemble(made.layouts[v], [*map(on_host, worker.outputs[v])])
        if v in worker.outputs
        else None
        for v in made.outputs
    ]
    own = [n for n in made.grads if made.rank_of(n) == worker.rank]
    return Result(outputs, {n: on_host(worker.gradient(n)) for n in own})


def merged(results: Mapping[int, Result]) -> Result:
    """The whole result from all ranks' parts; every part must come from exactly one rank."""
    outputs: list[Any] = []
    for column in zip(*(r.outputs for r in results.values()), strict=True):
        (value,) = [v for v in column if v is not None]
        outputs.append(value)
    grads: dict[str, Any] = {}
    for result in results.values():
        assert not grads.keys() & result.grads.keys()
        grads |= result.grads
    return Result(outputs, grads)


def on_threads(case: Case, options: Options, times: int = 1) -> Result:
    return in_pieces(case, options, times)[0]


def in_pieces(case: Case, options: Options, times: int = 1) -> tuple[Result, Mapping[str, Shard]]:
    """One step, gradients under the names of shards and copies; and what these are."""
    made = make_plan(case, options)
    cut = case.arrays | {n: s.of(case.arrays[s.parameter]) for n, s in made.shards.items()}
    with ThreadCluster(made.partition.placement.ranks) as cluster:
        found = run_step(made, case._replace(arrays=cut), cluster, times=times)
    return merged(found), made.shards


def assert_close(got: Result, want: Result, rtol: float = 1e-10) -> None:
    assert got.grads.keys() == want.grads.keys()
    for a, b in zip(got.outputs, want.outputs, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)
    for name, value in want.grads.items():
        scale = max(1.0, float(np.abs(value).max(initial=0.0)))
        np.testing.assert_allclose(got.grads[name], value, rtol=rtol, atol=rtol * scale)


def assert_same_bits(got: Result, want: Result) -> None:
    for a, b in zip(got.outputs, want.outputs, strict=True):
        assert a.tobytes() == b.tobytes()
    for name, value in want.grads.items():
        assert got.grads[name].tobytes() == value.tobytes(), name


def assert_equal_parameters(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-10, atol=1e-10, err_msg=name)
