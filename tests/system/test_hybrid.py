"""The rank grid: data parallel rows of model parallel columns in one pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import symgraph as sg
from partitioner.costs.machine import Device, Level, Machine
from partitioner.cutting.replicas import buckets
from runtime.engine.replica_sums import ReplicaSums
from runtime.engine.session import Session, initialize
from runtime.planning.options import Options
from runtime.planning.planner import plan
from runtime.profiling.calibration.pricing import quick_prices
from runtime.schedule.generators.table import SCHEDULES
from runtime.transports import ThreadCluster
from symgraph.core.context import cpu, gpu
from symgraph.core.errors import ConfigError
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from tests.helpers.gpus import everywhere
from tests.helpers.modules import GROUPS, ON_GPUS, fitted, network
from tests.helpers.pipelines import Case, assert_equal_parameters
from tests.helpers.small_lm import losses, write_bucketed, write_config
from tests.mpi.launch import launch, needs_mpi

GRIDS = [(1, 2), (2, 1), (2, 2), (3, 2), (2, 3)]  # data axis, model axis
WAYS = [((2, 2), schedule) for schedule in SCHEDULES] + [
    (grid, "1f1b") for grid in GRIDS if grid != (2, 2)
]
TRAIN = "optimizer: adam, learning_rate: 0.01, clip_global_norm: 1.0, steps: 6, dtype: float64"


def devices(count: int) -> tuple[sg.Context, ...]:
    return tuple(cpu(i) for i in range(count))


def mlp(grouped: bool = True) -> Case:
    """Three layers and a loss; the groups `layer0`, `layer1`, `layer2`, or none."""
    rng = np.random.default_rng(7)
    x = sym.Variable("data")
    for layer in range(3):
        with AttrScope(**({"ctx_group": f"layer{layer}"} if grouped else {})):
            x = sym.FullyConnected(x, num_hidden=5, name=f"fc{layer}")
            x = sym.Dropout(sym.tanh(x), p=0.2, name=f"drop{layer}")
    loss = sym.SoftmaxOutput(x, sym.Variable("label"), normalization="batch", name="loss")
    feeds = {"data": rng.standard_normal((12, 4)), "label": rng.integers(0, 5, 12).astype(float)}
    shapes, _, _ = loss.infer_shape(**{n: a.shape for n, a in feeds.items()})
    known = zip(loss.list_arguments(), shapes, strict=True)
    arrays = {n: rng.standard_normal(s) for n, s in known if n not in feeds}
    return Case(loss, feeds, arrays)


def trained(case: Case, options: Options, steps: int = 5) -> dict[str, np.ndarray]:
    """The parameters after some steps, and a check that copies are equal."""
    wanted = replace(options, update=True, slots=1)
    wrt = case.trained()
    made = plan(case.symbol, case.specs, wanted, wrt=wrt, dtypes=dict.fromkeys(wrt, "float64"))
    with ThreadCluster(made.partition.ranks) as cluster:
        arrays = initialize(made, cluster, sg.init.Uniform(0.5), seed=3)
        rule = sg.optimizer.create("sgd", learning_rate=0.2, momentum=0.9)
        run = Session(made, cluster, arrays, optimizer=rule, clip=0.5)
        for _ in range(steps):
            run.step(case.feeds)
        names: dict[str, bytes] = {}
        for own in run.arrays.values():
            for name, array in own.items():
                parameter = made.shards[name].parameter if name in made.shards else name
                assert names.setdefault(parameter, array.tobytes()) == array.tobytes()
        return run.parameters()


@pytest.fixture(scope="module")
def alone() -> dict[str, np.ndarray]:
    return trained(mlp(), Options(None, micro_batches=2))


@pytest.mark.parametrize(("grid", "schedule"), WAYS)
def test_every_grid_trains_as_one_device_does(grid, schedule, alone):
    rows, columns = grid
    groups = {f"layer{i}": cpu(min(i, columns - 1)) for i in range(3)}
    everything = devices(rows * columns)
    options = Options(groups, cpu(0), everything, schedule, 2, data_axis=rows, model_axis=columns)
    assert_equal_parameters(trained(mlp(), options), alone)


@pytest.mark.every(9)
@pytest.mark.parametrize("grouped", [True, False])
@pytest.mark.parametrize("strategy", ["parameters", "auto"])
def test_a_strategy_places_the_first_row(strategy, grouped, alone):
    case = mlp(grouped)
    options = Options(
        None,
        cpu(0),
        devices(4),
        "1f1b",
        2,
        data_axis=2,
        strategy=strategy,
        pricing=lambda graph, contexts: quick_prices(contexts),
    )
    made = plan(case.symbol, case.specs, options, wrt=case.trained())
    placed = {name: made.rank_of(name) for name in made.shards}
    for name, rank in placed.items():
        parameter, copy = made.shards[name].parameter, made.shards[name].copy
        assert rank == 2 * copy + placed[f"{parameter}[replica 0]"]
    assert set(placed.values()) in ({0, 1, 2, 3}, {0, 2})
    assert_equal_parameters(trained(case, options), alone)


def test_the_devices_of_a_machine_file_are_a_grid_too():
    """The first row was placed on all devices: "tuple.index(x): x not in tuple"."""
    case = mlp()
    machine = Machine(tuple(Device(cpu(i), 1e9) for i in range(4)), {"node": Level(1e-6, 1e9)})
    options = Options(
        None, cpu(0), devices(4), "1f1b", 2, data_axis=2, strategy="chain", machine=machine
    )
    made = plan(case.symbol, case.specs, options, wrt=case.trained())
    assert made.devices == devices(4)
    assert {shard.copy for shard in made.shards.values()} == {0, 1}


def test_sums_begin_while_backward_runs(monkeypatch):
    """When C1 comes, all buckets but the last are on their way or done."""
    begun: list[int] = []
    finish = ReplicaSums.finish

    def noted(self, *given):
        begun.append(self._given)
        finish(self, *given)

    monkeypatch.setattr(ReplicaSums, "finish", noted)
    monkeypatch.setattr("partitioner.cutting.replicas.BUCKET_BYTES", 1)
    groups = {f"layer{i}": cpu(0) for i in range(3)}
    case = mlp()
    options = Options(groups, cpu(0), devices(2), "1f1b", 2, data_axis=2)
    made = plan(case.symbol, case.specs, options, wrt=case.trained())
    assert len(buckets(made.partition)) == 6
    trained(case, options, steps=1)
    assert len(begun) == 2
    assert all(count >= 1 for count in begun)


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("pipeline.schedule=zb-h1", "pipeline.time_segment=2"),
        ("partition.strategy=chain",),
    ],
)
def test_a_config_on_a_grid(tmp_path, more):
    """Carried states, time segments, buckets, evaluation: the losses of one row."""
    path = write_config(tmp_path, TRAIN)
    grid = ("devices=[cpu(0), cpu(1), cpu(2), cpu(3)]", "partition.data_axis=2")
    fewer = ("pipeline.micro_batches=2",)
    assert losses(path, *fewer, *more, *grid) == pytest.approx(
        losses(path, *fewer, *(m for m in more if "strategy" not in m)), rel=1e-10
    )


@pytest.mark.slow
def test_buckets_on_a_grid(tmp_path):
    """Two batches of different buckets a step; dropout goes by sample."""
    path = write_bucketed(tmp_path)
    grid = ("devices=[cpu(0), cpu(1), cpu(2), cpu(3)]", "partition.data_axis=2")
    fewer = ("pipeline.micro_batches=2", "train.dtype=float64")
    want = losses(path, *fewer)
    assert losses(path, *fewer, *grid) == pytest.approx(want, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(4, marks=needs_mpi)])
def test_a_grid_of_processes(tmp_path, processes):
    """The bits of threads."""
    path = write_config(tmp_path, TRAIN.replace("float64", "float32"))
    grid = (
        "devices=[cpu(0), cpu(1), cpu(2), cpu(3)]",
        "partition.data_axis=2",
        "pipeline.micro_batches=2",
    )
    want = losses(path, *grid)
    ended = launch(processes, "symgraph.run", path, *grid, "--json")
    assert ended.status == 0, str(ended)
    assert f'"loss": {want!r}' in ended.stdout


@everywhere([ON_GPUS, {"a": gpu(2), "b": cpu(0)}], cpus=[GROUPS, {"a": cpu(2), "b": cpu(3)}])
def test_several_maps_of_a_module_are_rows(groups):
    """MXNet's group2ctxs: a map for each copy of the network."""
    one = fitted(network(0.5))
    two = fitted(network(0.5), group2ctxs=groups, schedule="zb-h1")
    assert one.keys() == two.keys()
    for name, array in one.items():
        np.testing.assert_allclose(two[name], array, rtol=2e-5, atol=1e-6)


def refused(**given: object) -> pytest.ExceptionInfo[ConfigError]:
    case = mlp()
    groups = {"layer0": cpu(0), "layer1": cpu(1), "layer2": cpu(1)} | given.pop("groups", {})
    with pytest.raises(ConfigError) as caught:
        plan(
            case.symbol, case.specs, Options(groups, cpu(0), devices(4), **given), wrt=["fc0_bias"]
        )
    return caught


def test_what_is_no_grid_is_refused():
    refused(data_axis=3).match("data_axis=3 does not divide the 4 devices into equal rows")
    refused(data_axis=2, model_axis=3).match("data_axis=2 and model_axis=3 make 6 ranks, but")
    where = {"layer2": cpu(3)}
    refused(data_axis=2, groups=where).match(
        r"'layer2' is on cpu\(3\), which is not in the first row of the grid \(cpu\(0\), cpu\(1\)\)"
    )
    several = {"layer2": (cpu(0), cpu(1))}
    refused(data_axis=2, groups=several).match("'layer2' is on several devices, but data_axis=2")
    with pytest.raises(ConfigError, match="same groups, each on one device, and no device in"):
        sg.mod.Module(network(), group2ctxs=[GROUPS, GROUPS])
