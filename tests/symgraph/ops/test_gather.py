"""gather_nd and scatter_nd, against numpy indexing."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import PARTIAL, WHOLE, Split, check_layout

RNG = np.random.default_rng(21)
PLACES = np.array([[0, -1, 1, 2], [1, 2, 0, -4]])


def normal(*shape):
    return RNG.standard_normal(shape)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2)])
@pytest.mark.parametrize("dtype", ["int64", "float32", "uint8"])
def test_gather_nd_takes_what_indices_name(shape, dtype):
    x = normal(*shape)
    places = abs(PLACES) % 3 if dtype == "uint8" else PLACES
    got = run_op("gather_nd", x, places.astype(dtype))
    np.testing.assert_array_equal(got, x[tuple(places)])


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2)])
def test_gradients(shape):
    twice = np.concatenate([PLACES, PLACES[:, :1]], axis=1)
    check_op("gather_nd", normal(*shape), twice)
    check_op("gather_nd", normal(*shape), PLACES[:1].reshape(1, 2, 2))
    check_op("scatter_nd", normal(5, *shape[2:]), twice, shape=shape)


def test_scatter_nd_adds_what_goes_to_one_place():
    got = run_op("scatter_nd", [2.0, 3.0, 4.0], [[1, 0, -1], [1, 0, 1]], shape=(2, 2))
    np.testing.assert_array_equal(got, [[3, 0], [0, 6]])


@pytest.mark.parametrize(("wrong", "index"), [([[0, 1], [0, 4]], "4"), ([[-4, 1], [0, 1]], "-4")])
def test_an_index_out_of_range_is_named(wrong, index):
    with pytest.raises(IndexError, match=rf"index {index} is outside -\d\.\.\d of axis [01]"):
        run_op("gather_nd", normal(3, 4), wrong)
    with pytest.raises(IndexError, match=f"index {index} is outside"):
        run_op("scatter_nd", normal(2), wrong, shape=(3, 4))


def test_shapes_that_do_not_fit():
    for places in ([0, 1], np.zeros((3, 2), int)):
        with pytest.raises(ShapeError, match="need 2 axes or more, the first of them with one"):
            run_op("gather_nd", normal(3, 4), places)
    with pytest.raises(ShapeError, match=r"data of shape \(3,\) does not fit \(4,\)"):
        run_op("scatter_nd", normal(3), PLACES, shape=(3, 4))


def test_gather_nd_layouts():
    x, places = normal(3, 4, 6), abs(PLACES) % 3
    halves = (4, (1, 3))
    assert check_layout("gather_nd", [x, places], [WHOLE, Split(1)], *halves) == [Split(0)]
    assert check_layout("gather_nd", [x, places], [Split(2, 3), WHOLE], 2, (1, 1)) == [Split(1, 3)]
    assert check_layout("gather_nd", [x, places], [PARTIAL, WHOLE], *halves) == [PARTIAL]
    for layouts, message in (
        ([Split(1), WHOLE], "takes along axis 1, where the batch lies"),
        ([Split(2), Split(1)], "takes from values that depend on the samples"),
        ([WHOLE, Split(0)], "names a place by indices of several samples"),
        ([WHOLE, PARTIAL], "looks up a sum over the batch"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout("gather_nd", [x, places], layouts, 2, (1, 1))


def test_scatter_nd_layouts():
    x, places = normal(4, 2), PLACES
    shape = {"shape": (3, 4, 2)}
    found = check_layout("scatter_nd", [x, places], [Split(0), Split(1)], 4, (1, 3), **shape)
    assert found == [PARTIAL]
    assert check_layout("scatter_nd", [x, places], [PARTIAL, WHOLE], 4, (1, 3), **shape) == [
        PARTIAL
    ]
    for layouts, message in (
        ([Split(1), WHOLE], "of which one alone depends on the samples"),
        ([Split(1), Split(1)], "whose batch lies differently"),
    ):
        with pytest.raises(MicroBatchError, match=message):
            check_layout("scatter_nd", [x, places], layouts, 2, (1, 1), **shape)
