"""Contexts gpu(i): what is said where there are none, and the same numbers as on CPUs.

There is no GPU here: tests.fake_cupy stands in for CuPy, strictly. With a real one the tests marked
`gpu` run as well.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from runtime.pipeline import Options
from runtime.schedules import SCHEDULES
from runtime.session import Session
from runtime.transports import ThreadCluster
from symgraph import arrays, cpu, gpu, mod, sym
from symgraph.errors import LimitError, PlacementError, RunError
from symgraph.optimizer import SGD
from tests.cuda.emulation import MISSING, compiler
from tests.fake_cupy import fake_cupy
from tests.pipelines import Case, assert_close, judge, make_plan, on_threads
from tests.recurrent import lstm_case
from tests.small_lm import losses, write_bucketed, write_config


@pytest.fixture(params=["stand-in", pytest.param("real", marks=pytest.mark.gpu)])
def shared_gpu(request, monkeypatch):
    """Any number of contexts on one card."""
    monkeypatch.setenv(arrays.SHARE, "1")
    if request.param == "real":
        try:
            arrays.require(gpu(0))
        except PlacementError as error:
            pytest.skip(str(error))
        yield
        return
    if compiler() is None:
        pytest.skip(MISSING)
    with fake_cupy(cards=1):
        yield


# -- what is not here ------------------------------------------------------------------------------


def refused(index: int = 0) -> str:
    with pytest.raises(PlacementError) as caught:
        arrays.require(gpu(index))
    return str(caught.value)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert refused() == (
        "gpu(0) cannot be used: the package cupy cannot be imported (import of cupy halted; None "
        "in sys.modules): pip install 'symgraph[gpu]'; cpu(0), cpu(1), ... run the same partition "
        "and schedule, a thread each"
    )


def test_without_a_driver():
    with fake_cupy(cards="cudaErrorInsufficientDriver: CUDA driver version is insufficient"):
        assert "CUDA finds no driver or no GPU (cudaErrorInsufficientDriver" in refused()


@pytest.mark.parametrize(
    ("cards", "index", "there"),
    [(0, 0, "CUDA finds no GPU;"), (1, 1, "this machine has gpu(0);"),
     (4, 4, "this machine has gpu(0) to gpu(3);")],
)  # fmt: skip
def test_more_than_there_are(cards, index, there):
    with fake_cupy(cards=cards):
        assert there in refused(index)
        assert refused(index).startswith(f"gpu({index}) cannot be used: ")


def test_contexts_share_a_card_if_they_may(monkeypatch):
    with fake_cupy(cards=2):
        assert "SYMGRAPH_SHARE_GPUS=1 lets contexts share them" in refused(2)
        monkeypatch.setenv(arrays.SHARE, "1")
        first, third = arrays.device(gpu(0)), arrays.device(gpu(2))
        assert arrays.device(gpu(2)) is third
        assert first.stream is not third.stream


def test_a_plan_says_so_before_anything_runs():
    case = lstm_case(2, 3)
    groups = {"layer0": gpu(0), "layer1": gpu(7), "head": gpu(7)}
    with fake_cupy(cards=1), pytest.raises(PlacementError, match=r"gpu\(7\) cannot be used"):
        on_threads(case, Options(groups, gpu(0), (), micro_batches=2))


def test_memory_that_a_card_has_not():
    with fake_cupy(), pytest.raises(LimitError, match=r"has 1\.00 MiB left of 1\.00 GiB") as caught:
        arrays.device(gpu(0)).bytes(1 << 40)
    assert "gpu(0)" in str(caught.value)
    assert "needs 1.00 TiB besides parameters" in str(caught.value)


def test_executors_and_modules_say_that_they_run_on_the_host():
    case = lstm_case(1, 2)
    shapes = {name: array.shape for name, array in case.feeds.items()}
    with fake_cupy():
        with pytest.raises(PlacementError, match=r"gpu\(0\) cannot be used: an executor keeps"):
            case.symbol.simple_bind(gpu(0), **shapes)
        module = mod.Module(case.symbol, ["data"], ["label"], context=gpu(0))
        with pytest.raises(PlacementError, match=r"gpu\(0\) cannot be used: a module keeps"):
            module.bind([("data", shapes["data"])], [("label", shapes["label"])])


# -- copies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool", "float16"])
def test_values_go_to_a_device_and_back(shared_gpu, dtype):
    values = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
    here = arrays.device(gpu(0))
    with here.use():
        there = here.put(values.T)
        assert there.flags.c_contiguous
        again, host = here.put(np.zeros_like(values.T)), np.zeros_like(values.T)
        arrays.copy(again, there)
        arrays.copy(host, again)
        assert (host == values.T).all()
        arrays.copy(again, values[::-1].T)  # not contiguous
        here.finish()
        assert (arrays.on_host(again) == values[::-1].T).all()


def test_a_view_lies_in_the_memory(shared_gpu):
    here = arrays.device(gpu(1))
    with here.use():
        memory = here.bytes(256)
        assert arrays.address(memory) % arrays.ALIGN == 0
        piece = here.view(memory, 64, arrays.TensorType((2, 3), "float32"))
        piece[...] = here.put(np.ones((2, 3), np.float32))
        assert arrays.address(piece) == arrays.address(memory) + 64
        here.finish()
        assert arrays.on_host(memory)[64 : 64 + 24].view(np.float32).tolist() == [1.0] * 6


# -- the same numbers ------------------------------------------------------------------------------


RUNS = 3  # call by call, captured, and launched again


def placed(devices, **how) -> Options:
    """Three layers and the head on devices in turn."""
    groups = {f"layer{i}": devices[i % len(devices)] for i in range(3)} | {"head": devices[-1]}
    return replace(Options(groups, devices[0], (), micro_batches=4), **how)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_schedule_on_gpus_does_what_the_reference_does(shared_gpu, schedule, count):
    case = lstm_case(3, 4, batch=8)
    devices = [gpu(i) for i in range(count)]
    assert_close(on_threads(case, placed(devices, schedule=schedule), RUNS), judge(case))


def test_cpus_and_gpus_in_one_pipeline(shared_gpu):
    case = lstm_case(3, 4, batch=8)
    for devices in ([cpu(0), gpu(0)], [gpu(0), cpu(0)], [gpu(1), cpu(0), gpu(0)]):
        assert_close(on_threads(case, placed(devices, schedule="1f1b"), RUNS), judge(case))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_time_segments_on_gpus(shared_gpu, schedule):
    case = lstm_case(3, 6, batch=4)
    options = placed([gpu(0), gpu(1)], schedule=schedule, time_segment=2, micro_batches=2)
    assert_close(on_threads(case, options, RUNS), judge(case))


def test_recomputation_on_gpus(shared_gpu):
    case = lstm_case(3, 4, batch=8)
    assert_close(on_threads(case, placed([gpu(0), gpu(1)], recompute="all"), RUNS), judge(case))


# -- training ------------------------------------------------------------------------------------

TRAIN = "optimizer: adam, learning_rate: 0.02, clip_global_norm: 1.0, steps: 6, seed: 1"
GPUS = (
    "devices=[gpu(0), gpu(1)]",
    "group2ctx={embed: gpu(0), layer0: gpu(0), layer1: gpu(1), decode: gpu(1)}",
)


@pytest.mark.parametrize("more", [
    (),
    ("train.optimizer=sgd", "train.momentum=0.9"),
    ("pipeline.schedule=zb-h1", "pipeline.time_segment=2"),
    ("pipeline.recompute=all",),
])  # fmt: skip
def test_training_on_gpus_ends_where_it_ends_on_cpus(shared_gpu, tmp_path, more):
    path = write_config(tmp_path, TRAIN)
    assert losses(path, *GPUS, *more) == pytest.approx(losses(path, *more), rel=1e-4)


def test_a_decoder_in_shards_on_gpus(shared_gpu, tmp_path):
    path = write_config(tmp_path, TRAIN)
    groups = "group2ctx={{embed: {0}, layer0: {0}, layer1: {1}, decode: [{0}, {1}]}}"
    on_cpus, on_gpus = groups.format("cpu(0)", "cpu(1)"), groups.format("gpu(0)", "gpu(1)")
    assert losses(path, GPUS[0], on_gpus) == pytest.approx(losses(path, on_cpus), rel=1e-4)


def test_a_grid_of_gpus(shared_gpu, tmp_path):
    """Replicas' gradients are summed by way of the host."""
    path = write_config(tmp_path, TRAIN)
    grid = ("partition.data_axis=2", "pipeline.micro_batches=2")
    four = "devices=[{0}(0), {0}(1), {0}(2), {0}(3)]"
    on_gpus = losses(path, *grid, four.format("gpu"), GPUS[1])
    assert on_gpus == pytest.approx(losses(path, *grid, four.format("cpu")), rel=1e-4)


def test_buckets_on_gpus(shared_gpu, tmp_path):
    path = write_bucketed(tmp_path)
    assert losses(path, *GPUS) == pytest.approx(losses(path), rel=1e-4)


def test_a_run_on_gpus_goes_on_from_its_checkpoint(shared_gpu, tmp_path):
    path = write_config(tmp_path, TRAIN)
    saved = f"checkpoint={{directory: {tmp_path / 'saved'}, every: 3, resume: auto}}"
    whole = losses(path, *GPUS)
    assert losses(path, *GPUS, saved, "train.steps=3") != whole
    assert losses(path, *GPUS, saved) == whole


def with_a_wrong_label() -> Case:
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=3, name="fc")
    net = sym.SoftmaxOutput(net, sym.Variable("label"), name="out")
    feeds = {"data": np.ones((4, 2)), "label": np.array([0, 1, 3, 2.0])}
    return Case(net, feeds, {"fc_weight": np.ones((3, 2)), "fc_bias": np.zeros(3)})


WRONG_LABEL = r"IndexError: label 3(\.0)? is outside 0\.\.2"


@pytest.mark.parametrize("context", [cpu(0), gpu(0)], ids=str)
def test_a_label_out_of_range_is_an_error_on_gpus_too(shared_gpu, context):
    with pytest.raises(RunError, match=WRONG_LABEL):
        on_threads(with_a_wrong_label(), Options({}, context, (), micro_batches=2))


@pytest.mark.parametrize("context", [cpu(0), gpu(0)], ids=str)
def test_a_wrong_label_is_not_taken_for_divergence(shared_gpu, context):
    """The kernels make NaN of it, and so is the norm that gradients are clipped by."""
    case = with_a_wrong_label()
    made = make_plan(case, Options({}, context, (), update=True))
    here = arrays.device(context)
    own = {name: here.put(array) for name, array in case.arrays.items()}
    with ThreadCluster(1) as cluster:
        session = Session(made, cluster, {0: own}, optimizer=SGD(0.1), clip=1.0)
        with pytest.raises(RunError, match=WRONG_LABEL):
            session.step(case.feeds)
