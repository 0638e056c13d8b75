"""Movement on GPUs: the operators' own numbers, put in place by copies that take no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime.backends.cuda.base import absent
from symgraph.core.registry import Env
from symgraph.core.types import TensorType
from tests.fakes.fake_cupy import fake_cupy
from tests.fakes.fake_graphs import MemoryPool, using_allocator
from tests.runtime.backends.cuda.calls import Called, numbers
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

X = numbers((2, 3, 4))
CALLS: list[tuple[str, tuple[np.ndarray, ...], dict[str, Any]]] = [
    ("transpose", (X,), {"axes": (2, 0, 1)}),
    ("SwapAxis", (X,), {"dim1": 0, "dim2": 2}),
    ("transpose", (numbers((2, 3, 5, 8)),), {"axes": (0, 2, 1, 3)}),  # by packs from here on
    ("transpose", (numbers((2, 3, 2, 5, 4)),), {"axes": (2, 0, 3, 1, 4)}),
    ("transpose", (numbers((3, 5, 2), "float64"),), {"axes": (1, 0, 2)}),
    ("reverse", (numbers((3, 5, 4)),), {"axis": 1}),
    ("Concat", (numbers((2, 3, 4)), numbers((2, 1, 4), seed=1)), {"num_args": 2, "dim": 1}),
    ("reverse", (X,), {"axis": 1}),
    ("slice", (X,), {"begin": (0, 1), "end": (2, 3)}),
    ("slice_axis", (X,), {"axis": -1, "begin": 1, "end": 3}),
    ("Crop", (numbers((1, 2, 5, 6)),), {"num_args": 1, "h_w": (3, 4), "center_crop": True}),
    ("SliceChannel", (X,), {"num_outputs": 3, "axis": 1, "squeeze_axis": True}),
    ("_cut", (X,), {"sizes": (1, 3), "axis": 2}),
    ("Concat", (X, numbers((2, 1, 4), seed=1)), {"num_args": 2, "dim": 1}),
    ("Concat", (X, X + 1, X + 2), {"num_args": 3, "dim": -1}),
    ("stack", (X, X + 1), {"num_args": 2, "axis": -1}),
    ("_pad_axis", (X,), {"axis": 1, "begin": 2, "size": 6}),
    ("_slice_grad", (X,), {"begin": (1,), "end": (3,), "shape": (5, 3, 4)}),
    ("_begin_state", (X,), {"shape": (0, 7)}),
    ("Cast", (X,), {"dtype": "int32"}),
    ("Cast", (X.astype("float64"),), {"dtype": "float16"}),
    ("Cast", (np.arange(5),), {"dtype": "float32"}),
]


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy():
        yield


@pytest.mark.parametrize(("op", "ins", "given"), CALLS, ids=lambda v: v if type(v) is str else "")
def test_numbers_go_where_they_belong(op, ins, given):
    called = Called(op, [np.zeros_like(x) for x in ins], {}, given)
    for there, x in zip(called.ins, ins, strict=True):  # it reads what is there when it is made
        there.set(x)
    called.before = [*ins]
    pool = MemoryPool()
    with using_allocator(pool.malloc):
        found = called.results()
    for made, wanted in zip(found, called.computed(Env()), strict=True):
        assert made.dtype == wanted.dtype
        np.testing.assert_array_equal(made, wanted)
    assert pool.total_bytes() == 0


def test_arrays_of_plans_have_no_memory():
    for shape in ((), (3,), (1 << 20, 1 << 20, 5)):
        found = absent(TensorType(shape, "float32"))
        assert (found.shape, found.flags.c_contiguous) == (shape, True)
        assert found.reshape(-1).size == np.prod(shape, dtype=int)
