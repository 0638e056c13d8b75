"""CUDA graphs of runs: the same numbers in a few launches, whatever changes between runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from runtime.backends import bodies, cuda_graphs
from runtime.backends.calls import Call
from runtime.backends.cuda import KERNELS
from runtime.backends.cuda.base import in_turn
from runtime.backends.cuda.joins import NO_JOINS
from runtime.backends.cuda_graphs import BEGIN, CapturedRun, last_conflicts
from runtime.backends.device import arrays, settings
from runtime.backends.device.table import CallContext, KernelCall
from runtime.engine.session import Session
from runtime.planning.options import Options
from runtime.transports import ThreadCluster
from symgraph import cpu, gpu
from symgraph.core.errors import LimitError, RunError
from symgraph.core.registry import Env
from symgraph.frontend import sym
from symgraph.frontend.optimizer import SGD
from tests.fakes.fake_cupy import fake_cupy
from tests.fakes.fake_graphs import CUDARuntimeError, on_host
from tests.helpers.gpus import replays
from tests.helpers.pipelines import Case, make_plan
from tests.helpers.recurrent import lstm_case
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = pytest.mark.skipif(compiler() is None, reason=MISSING)


@pytest.fixture(autouse=True)
def shared_gpu(monkeypatch):
    monkeypatch.setenv(settings.SHARE_GPUS, "1")
    with fake_cupy() as cupy:
        yield cupy


# -- networks --------------------------------------------------------------------------------------


def with_dropout() -> Case:
    """Two layers with random masks."""
    net = sym.Variable("data")
    for i in range(2):
        net = sym.FullyConnected(net, num_hidden=6, name=f"fc{i}")
        net = sym.Dropout(sym.Activation(net, act_type="tanh"), p=0.4, name=f"drop{i}")
    net = sym.SoftmaxOutput(net, sym.Variable("label"), name="out")
    rng = np.random.default_rng(3)
    feeds = {"data": rng.standard_normal((8, 5)), "label": rng.integers(0, 6, 8).astype(float)}
    arrays_ = {
        "fc0_weight": rng.standard_normal((6, 5)),
        "fc0_bias": np.zeros(6),
        "fc1_weight": rng.standard_normal((6, 6)),
        "fc1_bias": np.zeros(6),
    }
    return Case(net, feeds, arrays_)


def with_attention() -> Case:
    """Words of a sequence that attend to earlier ones."""
    net = sym.FullyConnected(sym.Variable("data"), num_hidden=12, flatten=False, name="qkv")
    net = sym.scaled_dot_product_attention(*sym.split(net, num_outputs=3, axis=2), causal=True)
    net = sym.SoftmaxOutput(net, sym.Variable("label"), preserve_shape=True, name="out")
    rng = np.random.default_rng(3)
    feeds = {"data": rng.standard_normal((8, 9, 5)), "label": rng.integers(0, 4, (8, 9)) * 1.0}
    return Case(net, feeds, {"qkv_weight": rng.standard_normal((12, 5)), "qkv_bias": np.ones(12)})


def trained(case: Case, context, steps: int = 4, **how) -> tuple[dict[str, np.ndarray], Session]:
    """The parameters after some steps on one device."""
    made = make_plan(case, replace(Options({}, context, (), update=True), **how))
    here = arrays.device(context)
    own = {name: here.put(array) for name, array in case.arrays.items()}
    with ThreadCluster(1) as cluster:
        session = Session(made, cluster, {0: own}, optimizer=SGD(0.1), seed=7)
        for _ in range(steps):
            session.step(case.feeds)
    return {name: arrays.on_host(array) for name, array in own.items()}, session


@pytest.mark.parametrize("micro_batches", [1, 4])
@pytest.mark.parametrize("case", [with_dropout(), with_attention()], ids=["masks", "attention"])
def test_numbers_are_those_of_the_host_from_step_to_step(case, micro_batches):
    found, session = trained(case, gpu(0), micro_batches=micro_batches)
    wanted, _ = trained(case, cpu(0), micro_batches=micro_batches)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, 1e-9, 1e-9)
    runs = replays(session)
    assert runs
    assert [run.apart for run in runs] == [[]] * len(runs)  # all of each is one launch


def test_an_lstms_biases_and_sums_are_left_to_its_gates(monkeypatch):
    case = lstm_case(2, 4, batch=3)
    found, session = trained(case, gpu(0), groups=None)
    calls = [step for replay in replays(session) for step in replay._steps]
    monkeypatch.setattr(bodies, "joins", lambda *_: NO_JOINS)
    wanted, other = trained(case, gpu(0), groups=None)
    apart = [step for replay in replays(other) for step in replay._steps]
    assert len(calls) == len(apart) - 6  # of each step but the last, in both layers
    biased = [sum(step.function is in_turn().function for step in s) for s in (calls, apart)]
    assert biased == [1, 1 + 2 * (1 + 4)]  # the head's; i2h's and each step's h2h, in both layers
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("beside", [False, True])
def test_gradients_beside_the_chain_wait_only_where_memory_demands_it(monkeypatch, beside):
    """Without the waits of either side, the stand-in finds memory that two streams use at once."""
    case, waited = lstm_case(3, 4, batch=3), []

    def conflicts(steps, drop):
        found = last_conflicts(steps)
        waited.extend((step.beside, last) for step, last in zip(steps, found, strict=True))
        return [
            BEGIN if step.beside == drop else last for step, last in zip(steps, found, strict=True)
        ]

    monkeypatch.setattr(cuda_graphs, "last_conflicts", partial(conflicts, drop=None))
    trained(case, gpu(0), groups=None)
    beside_chain = [last for is_beside, last in waited if is_beside]
    assert len(beside_chain) == 3 * 3  # dW of i2h and h2h, and their bias's, in each layer
    assert 0 < sum(last > BEGIN for is_beside, last in waited if not is_beside) < len(waited) / 3
    monkeypatch.setattr(cuda_graphs, "last_conflicts", partial(conflicts, drop=beside))
    with pytest.raises(RunError, match="and no event says when"):
        trained(case, gpu(0), groups=None)


def test_without_graphs_if_the_environment_says_so(monkeypatch):
    case = with_dropout()
    by_graphs, _ = trained(case, gpu(0))
    monkeypatch.setenv(settings.CUDA_GRAPHS, "0")
    call_by_call, session = trained(case, gpu(0))
    assert all(run.apart for run in replays(session))
    for name, array in by_graphs.items():
        np.testing.assert_array_equal(call_by_call[name], array)


# -- a replay --------------------------------------------------------------------------------------


class Calls:
    """Steps that add to numbers on the GPU, and count how often they are called."""

    def __init__(self, cupy, *names: str, reads_on_host: tuple[str, ...] = ()) -> None:
        self.total, self.counts = cupy.zeros(1), dict.fromkeys(names, 0)
        self.context, self._looks = CallContext(), reads_on_host
        amounts = [10.0 ** min(i, 9) for i in range(len(names))]
        self.steps = [Call(name, self.call, (name, amounts[i])) for i, name in enumerate(names)]

    def call(self, name: str, amount: float) -> None:
        self.counts[name] += 1
        if name in self._looks:
            on_host(name)
        self.total += amount

    def run(self, replay: CapturedRun) -> float:
        with arrays.device(gpu(0)).use():
            before = float(self.total[0])
            replay()
            return float(self.total[0]) - before


def test_the_third_run_calls_nobody(shared_gpu):
    calls = Calls(shared_gpu, "a", "b", "c")
    replay = CapturedRun(arrays.device(gpu(0)), calls.context, calls.steps)
    assert [calls.run(replay) for _ in range(4)] == [111.0] * 4
    assert set(calls.counts.values()) == {2}  # as they are, and for the capture


def test_runs_that_train_and_others_have_launches_of_their_own(shared_gpu):
    calls = Calls(shared_gpu, "a", "b")
    calls.steps[1] = Call("b", lambda: calls.call("b", 5 if calls.context.env.train else 7), ())
    replay = CapturedRun(arrays.device(gpu(0)), calls.context, calls.steps)
    for train in (True, False, True, False, False, True):
        calls.context.set(Env(train=train))
        assert calls.run(replay) == (6.0 if train else 8.0)


def test_what_looks_at_values_is_called_each_time(shared_gpu):
    calls = Calls(shared_gpu, "a", "b", "c", "d", "e")
    calls.steps[2] = calls.steps[2]._replace(fixed=False)
    replay = CapturedRun(arrays.device(gpu(0)), calls.context, calls.steps)
    assert [calls.run(replay) for _ in range(4)] == [11111.0] * 4
    assert calls.counts == {"a": 2, "b": 2, "c": 4, "d": 2, "e": 2}
    assert replay.apart == ["c"]


@pytest.mark.parametrize(
    ("reads_on_host", "apart"),
    [
        ("c", ["c"]),
        ("a", ["a"]),
        ("d", ["d", "e"]),  # one alone is no gain
    ],
)
def test_what_cannot_be_captured_is_called_each_time(shared_gpu, reads_on_host, apart):
    """Whatever it is that the card refuses, the other calls are captured around it."""
    calls = Calls(shared_gpu, "a", "b", "c", "d", "e", reads_on_host=(reads_on_host,))
    replay = CapturedRun(arrays.device(gpu(0)), calls.context, calls.steps)
    assert [calls.run(replay) for _ in range(4)] == [11111.0] * 4
    assert replay.apart == apart


def test_any_number_of_calls_that_cannot_be_captured(shared_gpu):
    names = [f"{'look' if i % 3 == 2 else 'call'}{i}" for i in range(2400)]
    calls = Calls(shared_gpu, *names, reads_on_host=tuple(names[2::3]))
    calls.steps = [step._replace(args=(step.name, 1.0)) for step in calls.steps]
    replay = CapturedRun(arrays.device(gpu(0)), calls.context, calls.steps)
    assert [calls.run(replay) for _ in range(3)] == [2400.0] * 3
    assert replay.apart == names[2::3]


def test_memory_that_a_capture_does_not_get_is_told(shared_gpu):
    calls = Calls(shared_gpu, "a", "b")

    def none_left() -> None:
        raise LimitError("gpu(0) has nothing left")

    first = [*calls.steps]
    replay = CapturedRun(arrays.device(gpu(0)), calls.context, first)
    calls.run(replay)
    replay._steps = [first[0], Call("b", none_left, ())]
    with pytest.raises(LimitError, match="nothing left"):
        calls.run(replay)


@pytest.mark.parametrize("cached", [True, False])
def test_a_capture_gets_memory_that_nobody_uses(shared_gpu, monkeypatch, cached):
    """CuPy's pool keeps what operators took before they were captured, here all there is."""
    free = []

    def memory(count: int) -> str:
        if not free:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        return f"{count} bytes"

    pool = SimpleNamespace(free_all_blocks=lambda: free.extend([1] * cached))
    monkeypatch.setattr(shared_gpu, "get_default_memory_pool", lambda: pool, raising=False)
    monkeypatch.setattr(shared_gpu.cuda, "Memory", memory, raising=False)
    monkeypatch.setattr(shared_gpu.cuda, "MemoryPointer", lambda *at: at, raising=False)
    here = arrays.device(gpu(0))
    if cached:
        assert here._temporaries.allocator(512) == ("512 bytes", 0)
        return
    with pytest.raises(LimitError, match=r"but operators need 512 B more while they run"):
        here._temporaries.allocator(512)


def test_kernels_are_loaded_when_they_are_bound(shared_gpu):
    """What loads one waits for the card: at its first launch that would be within a step."""
    here = arrays.device(gpu(0))
    with here.use():
        x, y = here.put(np.ones(3, np.float32)), here.put(np.zeros(3, np.float32))
        bound = KERNELS["relu"](KernelCall({}, (x,), (y,), CallContext()))
        launch = here.captured(lambda: bound.function(*bound.args))
        assert y.get().tolist() == [0, 0, 0]
        launch()
        assert y.get().tolist() == [1, 1, 1]


def test_the_stand_in_refuses_what_cuda_does(shared_gpu):
    here = arrays.device(gpu(0))
    x = here.put(np.ones(3))
    with here.use(), pytest.raises(CUDARuntimeError, match="CaptureInvalidated"):
        here.captured(lambda: float(x[0]))
    with here.use(), pytest.raises(NotImplementedError, match="cuBLAS"):
        here.captured(lambda: x @ x)
    with here.use():
        launch = here.captured(lambda: x.__iadd__(1))
        assert x.get().tolist() == [1, 1, 1]
        launch()
        assert x.get().tolist() == [2, 2, 2]
