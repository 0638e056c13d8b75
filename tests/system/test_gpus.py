"""Contexts gpu(i): what is said where there are none, and the same numbers as on CPUs.

There is no GPU here: tests.fakes.fake_cupy stands in for CuPy, strictly. With a real one the tests
marked `gpu` run as well.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from runtime.backends.cuda.rank_memory import ERROR_BLOCK
from runtime.backends.device import arrays, settings
from runtime.engine import devices as engine_devices
from runtime.engine.session import Session, initialize
from runtime.planning.options import Options
from runtime.schedule.generators.table import SCHEDULES
from runtime.transports import ThreadCluster
from symgraph import cpu, gpu
from symgraph.core.errors import GraphError, LimitError, PlacementError, RunError
from symgraph.core.units import bytes_text
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.init import Uniform
from symgraph.frontend.io import DataBatch
from symgraph.frontend.module import Module
from symgraph.frontend.optimizer import SGD
from tests.fakes import fake_cupy as fake
from tests.fakes.fake_cupy import fake_cupy
from tests.fakes.fake_streams import NULL
from tests.helpers.collectives import network, tree
from tests.helpers.gpus import STAND_IN
from tests.helpers.pipelines import (
    Case,
    assert_close,
    assert_same_bits,
    judge,
    make_plan,
    on_threads,
)
from tests.helpers.recurrent import lstm_case
from tests.helpers.small_lm import losses, write_bucketed, write_config

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
    [
        (0, 0, "CUDA finds no GPU;"),
        (1, 1, "this machine has gpu(0);"),
        (4, 4, "this machine has gpu(0) to gpu(3);"),
    ],
)
def test_more_than_there_are(cards, index, there):
    with fake_cupy(cards=cards):
        assert there in refused(index)
        assert refused(index).startswith(f"gpu({index}) cannot be used: ")


def test_contexts_share_a_card_if_they_may(monkeypatch):
    with fake_cupy(cards=2):
        assert "SYMGRAPH_SHARE_GPUS=1 lets contexts share them" in refused(2)
        monkeypatch.setenv(settings.SHARE_GPUS, "1")
        first, third = arrays.device(gpu(0)), arrays.device(gpu(2))
        assert arrays.device(gpu(2)) is third
        assert first.stream is not third.stream


def test_a_process_that_was_forked_after_cuda_was_asked(monkeypatch):
    """As by the MPI cluster: its parent's CUDA is of no use to it, and CUDA says but that."""
    with fake_cupy():
        arrays.require(gpu(0))
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert "make the MPI cluster first, which forks, then plans;" in refused()


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


SMALL = pytest.mark.parametrize("shared_gpu", [STAND_IN], indirect=True)  # a card as is wanted


@SMALL
@pytest.mark.parametrize(
    ("whole", "what"),
    [
        (64, "has 64 B of memory"),  # known before anything is made
        (1 << 30, r"has no memory left \(Out of memory allocating \d+ bytes\)"),  # others hold it
    ],
    ids=["a small card", "a full card"],
)
def test_parameters_that_a_card_has_no_room_for(shared_gpu, whole, what, monkeypatch):
    case = lstm_case(1, 2)
    made = make_plan(case, Options(None, gpu(0), (), update=True, slots=1))
    monkeypatch.setattr(fake, "MEMORY", 64)
    monkeypatch.setattr(engine_devices, "gpu_memory", lambda _: (64, whole))
    with ThreadCluster(1) as cluster, pytest.raises(LimitError) as caught:
        initialize(made, cluster, Uniform(0.1), seed=0)
    (memory,) = made.memory
    assert re.fullmatch(
        rf"gpu\(0\) {what}; the plan gives it "
        f"{bytes_text(memory.parameters)} of parameters, {bytes_text(memory.optimizer)} of "
        f"optimizer arrays and {bytes_text(memory.peak)} in all: see the table of .*",
        str(caught.value),
    )


def test_a_host_that_is_too_small_is_warned_of(monkeypatch):
    made = make_plan(lstm_case(1, 2), Options(None, cpu(0), (), update=True, slots=1))
    monkeypatch.setattr(engine_devices, "host_memory", lambda: made.memory[0].peak - 1)
    said = rf"needs {re.escape(bytes_text(made.memory[0].peak))} of memory, and this host has"
    with ThreadCluster(1) as cluster, pytest.warns(UserWarning, match=said):
        initialize(made, cluster, Uniform(0.1), seed=0)


@SMALL
def test_optimizer_arrays_that_a_card_has_no_room_for(shared_gpu, monkeypatch):
    case, here = lstm_case(1, 2), arrays.device(gpu(0))
    made = make_plan(case, Options(None, gpu(0), (), update=True, slots=1))
    own = {name: here.put(array) for name, array in case.arrays.items()}
    with ThreadCluster(1) as cluster:
        session = Session(made, cluster, {0: own}, optimizer=SGD(0.1, momentum=0.9))
        monkeypatch.setattr(fake, "MEMORY", 200)  # more than kernels want
        with pytest.raises(LimitError, match=r"^rank 0 failed at C .*gpu\(0\) has no memory left"):
            session.step(case.feeds)


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
        assert arrays.address(memory) % arrays.CACHE_LINE == 0
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


@pytest.mark.every(15)
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


# -- executors -----------------------------------------------------------------------------------


def squares_and_product():
    """w and its square on a GPU, times b on a CPU."""
    with AttrScope(ctx_group="card"):
        square = sym.square(sym.Variable("w"), name="square")
    with AttrScope(ctx_group="host"):
        return sym.Group([square, sym.elemwise_mul(square, sym.Variable("b"), name="product")])


CARD = {"card": gpu(0), "host": cpu(0)}


def test_executors_take_values_from_wherever(shared_gpu):
    """Lists, numbers, numpy's arrays and CuPy's; what is made lies where it is made."""
    card, values = arrays.device(gpu(0)), np.array([[1.0, 2], [3, 4]], np.float32)
    with card.use():
        there = card.put(values.astype(np.float64))
        card.finish()
    net = squares_and_product()
    with net.simple_bind(cpu(0), group2ctx=CARD, w=(2, 2), b=(2, 2)) as executor:
        executor.copy_params_from({"w": there, "b": there})
        assert card.holds(executor.arg_dict["w"])
        assert arrays.HOST.holds(executor.arg_dict["b"])
        square, product = executor.forward(is_train=True)
        assert card.holds(square)
        assert arrays.on_host(square).tolist() == (values**2).tolist()
        assert product.tolist() == (values**3).tolist()
        executor.backward([values, there.T])  # not contiguous
        want = 2 * values * (values + values.T * values)
        assert arrays.on_host(executor.grad_dict["w"]).tolist() == want.tolist()
        assert executor.grad_dict["b"].tolist() == (values.T * values**2).tolist()
        for more in (values.T, values.T.tolist(), there.T):
            (square, _) = executor.forward(w=more)
            assert arrays.on_host(square).tolist() == (values.T**2).tolist()
        executor.arg_dict["w"][:] = 3
        assert arrays.on_host(executor.forward()[0]).tolist() == [[9, 9], [9, 9]]
        executor.arg_dict["w"].set(values)
        assert arrays.on_host(executor.forward()[0]).tolist() == (values**2).tolist()


def test_executors_work_on_the_callers_arrays_on_gpus(shared_gpu):
    card, b = arrays.device(gpu(0)), np.full(2, 5.0)
    with card.use():
        w, gradient, other = (card.put(np.full(2, x)) for x in (2.0, 1.0, 0.0))
        card.finish()
    grads = {"w": gradient, "b": np.zeros(2)}
    net = squares_and_product()
    how = {"args_grad": grads, "grad_req": "add", "group2ctx": CARD}
    with net.bind(cpu(0), {"w": w, "b": b}, **how) as made:
        assert made.arg_dict["w"] is w
        for _ in range(2):
            made.forward(is_train=True)
            made.backward([np.ones(2), np.ones(2)])
    assert arrays.on_host(gradient).tolist() == [1 + 2 * 24.0] * 2
    far = r"`args`: the array of 'w' lies on the host, but its variable is on gpu\(0\), and arrays"
    with pytest.raises(GraphError, match=far):
        net.bind(cpu(0), {"w": b, "b": b}, group2ctx=CARD)
    with pytest.raises(GraphError, match="of 'b' lies on GPU 0, but its variable is on the host"):
        net.bind(cpu(0), {"w": w, "b": other}, group2ctx=CARD)


@SMALL
def test_what_callers_do_to_arrays_on_their_own_stream_is_waited_for(shared_gpu):
    """A context's stream does not wait for it by itself."""
    net = squares_and_product()
    with net.simple_bind(cpu(0), group2ctx=CARD, w=(2,), b=(2,)) as executor:
        executor.arg_dict["w"][:] = 3
        assert NULL.busy
        executor.forward(is_train=True)
        assert not NULL.busy
        executor.grad_dict["w"][:] = 1
        executor.backward([np.ones(2), np.ones(2)])
        assert not NULL.busy
    with Module(net, ["b"], label_names=None, group2ctxs=CARD) as module:
        module.bind([("b", (2,))])
        module.set_params({"w": [1, 1]})
        module.init_optimizer(optimizer_params={"learning_rate": 1.0, "rescale_grad": 1.0})
        module.forward(DataBatch([np.ones(2)]), is_train=True)
        module.backward([np.ones(2), np.ones(2)])
        module.grad_dict["w"][:] = 5
        assert NULL.busy
        module.update()
        assert not NULL.busy
        assert module.get_params()[0]["w"].tolist() == [-4, -4]


def test_executors_with_a_layer_in_shards_on_gpus(shared_gpu):
    """Its parameters are whole, on the host; what is assigned to them is what the next pass has."""
    with AttrScope(ctx_group="a", shard="2"):
        net = sym.FullyConnected(sym.Variable("data"), num_hidden=4, name="fc")
    with AttrScope(ctx_group="b"):
        net = sym.MakeLoss(sym.square(net))
    found = []
    for devices in ([cpu(0), cpu(1)], [gpu(0), gpu(1)], [cpu(0), gpu(0)]):
        where = {"a": devices, "b": devices[0]}
        with net.simple_bind(devices[0], group2ctx=where, data=(6, 3)) as executor:
            for seed in range(2):
                rng = np.random.default_rng(seed)
                executor.arg_dict["fc_weight"][:] = rng.standard_normal((4, 3))
                executor.forward(is_train=True, data=rng.standard_normal((6, 3)))
                executor.backward()
            found.append({n: arrays.on_host(g).copy() for n, g in executor.grad_dict.items()})
    for grads in found[1:]:
        for name, gradient in found[0].items():
            np.testing.assert_allclose(grads[name], gradient, 1e-5, 1e-5)


# -- training ------------------------------------------------------------------------------------

TRAIN = "optimizer: adam, learning_rate: 0.02, clip_global_norm: 1.0, steps: 6, seed: 1"
GPUS = (
    "devices=[gpu(0), gpu(1)]",
    "group2ctx={embed: gpu(0), layer0: gpu(0), layer1: gpu(1), decode: gpu(1)}",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("train.optimizer=sgd", "train.momentum=0.9"),
        ("pipeline.schedule=zb-h1", "pipeline.time_segment=2"),
        ("pipeline.recompute=all",),
    ],
)
def test_training_on_gpus_ends_where_it_ends_on_cpus(shared_gpu, tmp_path, more):
    path = write_config(tmp_path, TRAIN)
    assert losses(path, *GPUS, *more) == pytest.approx(losses(path, *more), rel=1e-4)


@pytest.mark.slow
def test_a_decoder_in_shards_on_gpus(shared_gpu, tmp_path):
    path = write_config(tmp_path, TRAIN)
    groups = "group2ctx={{embed: {0}, layer0: {0}, layer1: {1}, decode: [{0}, {1}]}}"
    on_cpus, on_gpus = groups.format("cpu(0)", "cpu(1)"), groups.format("gpu(0)", "gpu(1)")
    assert losses(path, GPUS[0], on_gpus) == pytest.approx(losses(path, on_cpus), rel=1e-4)


@pytest.mark.slow
@SMALL
@pytest.mark.parametrize("make", [network, tree])
def test_collectives_go_from_card_to_card(shared_gpu, make, monkeypatch):
    """Into memory that nobody reads any longer, and with the bits that they have on one device."""
    case, found, moved = make(3), [], []
    for name in ("get", "set"):
        inner = getattr(fake.ndarray, name)

        def noted(array, *args, inner=inner, **kwargs):
            moved.append(array.dtype)
            return inner(array, *args, **kwargs)

        monkeypatch.setattr(fake.ndarray, name, noted)
    for count in (1, 2, 3):
        places = {f"rank{i}": gpu(i % count) for i in range(3)}
        devices = tuple(map(gpu, range(count)))
        options = Options(places, gpu(0), devices, "1f1b", 3)
        found.append(on_threads(case, options, 2 * RUNS))
    assert np.uint8 not in moved  # what goes in collectives
    assert_close(found[0], judge(case))
    for result in found[1:]:
        assert_same_bits(result, found[0])


@pytest.mark.every(2)
def test_collectives_of_cpus_and_gpus(shared_gpu):
    case = network(3)
    places = {"rank0": gpu(0), "rank1": cpu(0), "rank2": gpu(1)}
    options = Options(places, cpu(0), (gpu(0), cpu(0), gpu(1)), "1f1b", 3)
    assert_close(on_threads(case, options, RUNS), judge(case))


def fetched(monkeypatch) -> list[int]:
    """The sizes of arrays that come from the stand-in's card to the host from now on."""
    sizes, get = [0], fake.ndarray.get

    def counted(array, *args, **kwargs):
        sizes.append(array.size)
        return get(array, *args, **kwargs)

    monkeypatch.setattr(fake.ndarray, "get", counted)
    return sizes


@pytest.mark.slow
def test_a_grid_of_gpus(shared_gpu, tmp_path, monkeypatch):
    """Replicas' gradients are packed, sent and added up from card to card."""
    path = write_config(tmp_path, TRAIN)
    grid = ("partition.data_axis=2", "pipeline.micro_batches=2")
    four = "devices=[{0}(0), {0}(1), {0}(2), {0}(3)]"
    on_cpus = losses(path, *grid, four.format("cpu"))
    sizes = fetched(monkeypatch)
    on_gpus = losses(path, *grid, four.format("gpu"), GPUS[1])
    assert on_gpus == pytest.approx(on_cpus, rel=1e-4)
    assert max(sizes) <= ERROR_BLOCK  # errors alone: any gradient has more elements


@pytest.mark.slow
def test_buckets_on_gpus(shared_gpu, tmp_path):
    path = write_bucketed(tmp_path)
    assert losses(path, *GPUS) == pytest.approx(losses(path), rel=1e-4)


@pytest.mark.slow
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
