"""Sequences of different lengths on GPUs, against the operators' own computations."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.backends.device.operands import ID_DTYPES
from tests.fakes.fake_cupy import fake_cupy
from tests.runtime.backends.cuda.calls import REALS, Called, agree, has_no_kernel, numbers
from tests.runtime.backends.cuda.emulation import MISSING, compiler

pytestmark = [pytest.mark.every(6), pytest.mark.skipif(compiler() is None, reason=MISSING)]

STEPS, BATCH = 5, 4
AXES = pytest.mark.parametrize("axis", [0, 1])
OPS = ("SequenceMask", "SequenceReverse", "SequenceLast", "_sequence_last_grad")


@pytest.fixture(autouse=True)
def kernels():
    with fake_cupy():
        yield


def call(op: str, axis: int, inner: tuple[int, ...], dtype: str) -> tuple[np.ndarray, dict]:
    """Data and parameters."""
    shape = (STEPS, BATCH) if axis == 0 else (BATCH, STEPS)
    if op == "_sequence_last_grad":
        return numbers((BATCH, *inner), dtype), {"axis": axis, "size": STEPS}
    given = {"value": -7.5} if op == "SequenceMask" else {}
    return numbers((*shape, *inner), dtype), {"axis": axis, **given}


@pytest.mark.every(3)
@AXES
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", REALS)
def test_sequences(op, axis, dtype):
    for inner in ((), (3,), (2, 150)):
        x, given = call(op, axis, inner, dtype)
        agree(op, x, near=1e-9, **given)
        for kind in ID_DTYPES if dtype == "float32" else ("int32",):
            lengths = np.array([1, STEPS, 3, 2]).astype(kind)
            agree(op, x, lengths, near=1e-9, use_sequence_length=True, **given)


@AXES
def test_empty_sequences(axis):
    lengths = np.array([0, STEPS, 0, 2], "int32")
    for op in OPS[:2]:
        x, given = call(op, axis, (3,), "float32")
        agree(op, x, lengths, near=1e-9, use_sequence_length=True, **given)


@AXES
@pytest.mark.parametrize(
    ("op", "length", "said"),
    [
        ("SequenceReverse", STEPS + 1, "sequence length 6 is outside 0..5"),
        ("SequenceReverse", -1, "sequence length -1 is outside 0..5"),
        ("SequenceLast", 0, "last step of a sequence -1 is outside 0..4"),
        ("SequenceLast", STEPS + 1, "last step of a sequence 5 is outside 0..4"),
        ("_sequence_last_grad", 0, "last step of a sequence -1 is outside 0..4"),
    ],
)
def test_lengths_that_there_cannot_be(op, axis, length, said):
    x, given = call(op, axis, (3,), "float32")
    lengths = np.array([1, 2, length, 4], "int32")
    called = Called(op, (x, lengths), {}, {"use_sequence_length": True, **given})
    (made,) = called.results()
    assert np.isnan(made).any()
    with pytest.raises(IndexError, match=said):
        called.context.check()


def test_other_dtypes_are_left_to_the_operators():
    assert has_no_kernel(
        "SequenceReverse", np.ones((2, 3)), np.ones(3, bool), use_sequence_length=True, axis=0
    )
