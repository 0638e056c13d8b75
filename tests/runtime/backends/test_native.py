"""Native calls: neighbouring calls of compiled kernels without Python between them."""

from __future__ import annotations

import time

import numpy as np
import pytest

from runtime.backends.calls import Call, NodeFailed, make
from runtime.backends.device.compile import jit
from runtime.backends.native import NativeCalls, apart, joined


@jit
def scale(x, by, turned, sizes, out, *offsets):
    """An argument of each kind."""
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            value = x[i, j] * by
            for offset in offsets:
                value += offset
            if turned:
                out[j, i] = value
            else:
                out[i, j] = value


@jit
def check(x, out):
    if x[0] < 0:
        raise IndexError("negative")
    out[0] += x[0]


@jit
def add_all(out, arrays, numbers):
    for x in arrays:
        out[0] += x[0]
    for number in numbers:
        out[0] += number


@jit
def ignore(what):
    pass


def arrays(dtype="float32"):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 10)).astype(dtype)
    return x[::2, 1:5], np.zeros((3, 4), dtype), np.zeros((4, 3), dtype)  # x's rows lie apart


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_arguments_arrive_as_from_python(dtype):
    x, plain, turned = arrays(dtype)
    number = x.dtype.type
    steps = [
        Call("a", scale, (x, number(3), False, (3, 4), plain, number(4))),
        Call("b", scale, (x, number(2), True, (3, 4), turned, number(5), number(7))),
        Call("c", scale, (x, 3, False, (2, 2), plain, 1)),  # other types of the same kernel
    ]
    make(steps)
    wanted = plain.copy(), turned.copy()
    plain[:] = turned[:] = 0
    (call,) = joined(steps)
    assert isinstance(call.function, NativeCalls)
    make([call])
    np.testing.assert_array_equal(plain, wanted[0])
    np.testing.assert_array_equal(turned, wanted[1])
    assert plain.any()
    assert turned.any()


@pytest.mark.parametrize(
    ("arrays", "numbers", "kind", "native"),
    [
        (1, 1, np.float32, True),
        (3, 8, np.float64, True),
        (10, 8, np.float32, True),
        (70, 2, np.float64, True),
        (80, 1, np.float64, False),
        (1, 9, np.float32, False),
    ],
)
def test_as_many_arguments_as_calls_pass(arrays, numbers, kind, native):
    """Else Python calls the kernel."""
    out, given = np.zeros(1), tuple(np.full(1, 2.0**i) for i in range(arrays))
    some = tuple(kind(2.0**-i) for i in range(1, numbers + 1))
    (call,) = joined([Call("a", add_all, (out, given, some))])
    assert isinstance(call.function, NativeCalls) is native
    make([call])
    assert out == sum(x[0] for x in given) + sum(some)


def test_the_order_stays_and_python_is_called_in_between():
    total, one = np.zeros(1), np.ones(1)
    seen = []
    steps = [
        Call("a", check, (one, total)),
        Call("b", check, (one, total)),
        Call("look", lambda: seen.append(total[0]), ()),
        Call("none", ignore, (None,)),  # what has no words
        Call("c", check, (one, total)),
    ]
    calls = joined(steps)
    assert [call.name for call in calls] == ["a", "look", "none", "c"]
    assert [*apart(calls)] == steps
    make(calls)
    assert seen == [2]
    assert total == 3


def test_what_a_kernel_raises_names_its_node():
    total, good, bad = np.zeros(1), np.ones(1), -np.ones(1)
    steps = joined(
        [
            Call("first", check, (good, total)),
            Call("wrong", check, (bad, total)),
            Call("after", check, (good, total)),
        ]
    )
    assert len(steps) == 1
    with pytest.raises(NodeFailed) as caught:
        make(steps)
    assert caught.value.node == "wrong"
    assert isinstance(caught.value.__cause__, IndexError)
    assert total == 1


def test_times_are_those_of_the_stopwatch_s_clock():
    total, one = np.zeros(1), np.ones(1)
    (call,) = joined([Call(str(i), check, (one, total)) for i in range(5)])
    before = time.perf_counter_ns()
    begins = call.function.timed()
    after = time.perf_counter_ns()
    assert len(begins) == 5
    assert sorted([before, *begins, after]) == [before, *begins, after]
    assert total == 5
