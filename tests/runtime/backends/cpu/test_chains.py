"""Chains of element-wise calls, made block by block: same bits, and nothing read too late."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.bodies import chained
from runtime.backends.calls import Call
from runtime.backends.cpu.chains import BLOCK, in_blocks
from runtime.backends.cpu.flat import LOOPS

SIZE = 3 * BLOCK + 17


def steps_of(*calls):
    return [Call(f"n{i}", function, args) for i, (function, args) in enumerate(calls)]


def run(steps):
    for step in steps:
        step.function(*step.args)


def test_neighbours_become_one_call_with_the_same_bits():
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, SIZE))
    number = np.array(2.0)

    def network():
        a, b = np.empty(SIZE), np.empty(SIZE)
        calls = [(np.multiply, (x, number, a)), (np.add, (a, y, b)), (LOOPS["tanh"], (b, b))]
        return steps_of(*calls), b

    (apart, wanted), (steps, found) = network(), network()
    together = chained(steps)
    run(apart)
    run(together)
    assert [s.function for s in together] == [in_blocks]
    assert together[0].name == "n0"
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("size", [4, BLOCK, 2 * BLOCK - 1])
def test_small_arrays_are_left(size):
    x, out = np.ones(size), np.empty(size)
    steps = steps_of((np.add, (x, x, out)), (np.negative, (out, out)))
    assert chained(steps) == tuple(steps)


def test_other_calls_and_other_sizes_end_a_chain():
    x, out = np.ones(SIZE), np.empty(SIZE)
    wide, sums = np.empty(SIZE + 1), np.empty(1)
    steps = steps_of(
        (np.add, (x, x, out)),
        (np.negative, (out, out)),
        (np.sum, (out, None, None, sums)),
        (np.negative, (out, out)),
        (np.add, (wide, wide, wide)),
    )
    together = chained(steps)
    assert [s.name for s in together] == ["n0", "n2", "n3", "n4"]
    assert [s.function for s in together] == [in_blocks, np.sum, np.negative, np.add]


def test_what_lies_elsewhere_in_the_same_memory_is_not_written_too_early():
    """The second call writes what the first still has to read: one place on."""
    memory = np.arange(SIZE + 1.0)
    out = np.empty(SIZE)
    steps = steps_of((np.negative, (memory[:-1], out)), (np.add, (out, out, memory[1:])))
    assert chained(steps) == tuple(steps)


def test_parts_that_do_not_lie_together_are_left():
    table = np.ones((SIZE, 2))
    out = np.empty(SIZE)
    steps = steps_of((np.add, (table[:, 0], out, out)), (np.negative, (out, out)))
    assert chained(steps) == tuple(steps)
