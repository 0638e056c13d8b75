"""IdentityAttachKLSparseReg: numbers by hand, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph import sym
from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.core.params import Site
from symgraph.core.registry import find
from tests.symgraph.ops.layouts import WHOLE, Split

OP = find("IdentityAttachKLSparseReg")


def test_training_moves_the_average_and_adds_its_slope():
    net = sym.IdentityAttachKLSparseReg(sym.Variable("x"), penalty=0.01, name="sparse")
    assert net.list_auxiliary_states() == ["sparse_moving_avg"]
    x = np.array([[0.2, 0.6], [0.4, 0.8]], "float32")
    with net.simple_bind(x=(2, 2)) as executor:
        executor.aux_dict["sparse_moving_avg"][:] = 0.5
        executor.forward(is_train=False, x=x)
        np.testing.assert_array_equal(executor.aux_dict["sparse_moving_avg"], [0.5, 0.5])
        (output,) = executor.forward(is_train=True, x=x)
        np.testing.assert_array_equal(output, x)
        executor.backward(np.array([[1, 2], [3, 4]], "float32"))
        # 0.9 * 0.5 + 0.1 * mean
        np.testing.assert_allclose(executor.aux_dict["sparse_moving_avg"], [0.48, 0.52], 1e-6)
        # 0.01 * (0.9 / 0.52 - 0.1 / 0.48) and 0.01 * (0.9 / 0.48 - 0.1 / 0.52)
        slope = [0.0152243590, 0.0168269231]
        wanted = np.array([[1, 2], [3, 4]]) + slope
        np.testing.assert_allclose(executor.grad_dict["x"], wanted, 1e-6)


def test_shapes_and_layout():
    site = Site(OP.name, "op", {})
    assert OP.shape(site, [None, None], [(4, 3), None]) == ([(4, 3), (3,)], [(4, 3), (3,)])
    with pytest.raises(ShapeError, match=r"\(batch, units\) data, not on shape \(2, 3, 4\)"):
        OP.shape(site, [(2, 3, 4), None], [None, None])
    with pytest.raises(ShapeError, match=r"moving_avg of shape \(4,\) does not fit \(3,\)"):
        OP.shape(site, [(2, 3), (4,)], [None, None])
    assert OP.batch(site, [WHOLE, WHOLE], [], []) == [WHOLE, WHOLE]
    with pytest.raises(MicroBatchError, match="penalty on averages over the batch"):
        OP.batch(site, [Split(0), WHOLE], [], [])
