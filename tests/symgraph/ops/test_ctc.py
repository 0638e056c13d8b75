"""CTCLoss: the sum over all paths, written out; gradients; lengths; micro-batches."""

from __future__ import annotations

from itertools import groupby, product

import numpy as np
import pytest

from symgraph import sym
from symgraph.core.errors import MicroBatchError, ShapeError
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import Split, check_layout

RNG = np.random.default_rng(31)
T, N, C = 5, 4, 4
DATA = RNG.standard_normal((T, N, C))
FIRST = np.array([[1, 2, 3], [2, 2, 0], [3, 0, 0], [0, 0, 0]])  # the blank is 0
LAST = np.where(FIRST == 0, -1, FIRST - 1)  # the blank is 3
BY_LENGTH = np.array([[0, 1, 2], [1, 1, 2], [2, 0, 1], [1, 2, 0]])  # as LAST, up to its length
LENGTHS = np.array([3, 2, 1, 0])


def by_paths(scores, label, blank):
    """-log of the sum of the probabilities of all paths that collapse to the label."""
    prob = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    total = 0.0
    for path in product(range(scores.shape[1]), repeat=len(scores)):
        if [k for k, _ in groupby(path) if k != blank] == list(label):
            total += np.prod(prob[np.arange(len(path)), list(path)])
    return -np.log(total)


@pytest.mark.parametrize("steps", [None, np.array([5, 4, 2, 3])])
@pytest.mark.parametrize(
    ("label", "blank", "lengths"), [(FIRST, 0, None), (LAST, 3, None), (BY_LENGTH, 3, LENGTHS)]
)
def test_the_loss_is_the_sum_over_all_paths(label, blank, lengths, steps):
    given = [a for a in (steps, lengths) if a is not None]
    attrs = {
        "use_data_lengths": steps is not None,
        "use_label_lengths": lengths is not None,
        "blank_label": "last" if blank else "first",
    }
    loss = run_op("CTCLoss", DATA, label, *given, **attrs)
    ends = np.full(N, T) if steps is None else steps
    wanted = [by_paths(DATA[: ends[n], n], label[n, : LENGTHS[n]], blank) for n in range(N)]
    np.testing.assert_allclose(loss, wanted, rtol=1e-10)
    check_op("CTCLoss", DATA, label, *given, second=False, **attrs)


def test_a_sample_without_a_path_counts_nothing():
    """As in MXNet: two equal labels need a blank between them."""
    data = np.concatenate([DATA[:2], DATA[:2]], axis=1)
    loss = run_op("CTCLoss", data, np.array([[1, 1], [1, 2]] * 4))
    np.testing.assert_array_equal(loss[::2], 0)
    assert (loss[1::2] > 0).all()
    check_op("CTCLoss", data, np.array([[1, 1], [1, 2]] * 4), second=False)


def test_long_sequences_stay_finite():
    data = RNG.standard_normal((300, 2, 5)).astype("float32") * 20
    label = RNG.integers(1, 5, (2, 60))
    narrow, wide = (run_op("CTCLoss", data.astype(d), label) for d in ("float32", "float64"))
    assert np.isfinite(wide).all()
    np.testing.assert_allclose(narrow, wide, rtol=1e-4)


def test_micro_batches_along_axis_1():
    feeds = [DATA, FIRST, np.array([5, 4, 2, 3])]
    layouts = [Split(1), Split(0), Split(0)]
    for parts in ((2, 2), (3, 1)):
        assert check_layout("CTCLoss", feeds, layouts, N, parts, use_data_lengths=True) == [
            Split(0)
        ]
    with pytest.raises(MicroBatchError, match="along axis 1"):
        check_layout("CTCLoss", [DATA, FIRST], [Split(0), Split(0)], T, (3, 2))


def test_names_shapes_and_errors():
    data = sym.Variable("data")
    net = sym.contrib.ctc_loss(data, use_data_lengths=True, use_label_lengths=True, name="c")
    assert net.list_arguments() == ["data", "c_label", "c_data_lengths", "c_label_lengths"]
    assert net.list_outputs() == ["c_output0"]
    assert net.infer_shape(data=(T, 0, C), c_label=(N, 3)) == (
        [(T, N, C), (N, 3), (N,), (N,)],
        [(N,)],
        [],
    )
    with pytest.raises(ShapeError, match="6 labels are more than the 5 time steps"):
        run_op("CTCLoss", DATA, np.ones((N, 6)))
    with pytest.raises(IndexError, match=r"label 4 is outside 0\.\.3"):
        run_op("CTCLoss", DATA, FIRST + (FIRST == 3))
    with pytest.raises(IndexError, match=r"data length 6 is outside 0\.\.5"):
        run_op("CTCLoss", DATA, FIRST, np.full(N, 6), use_data_lengths=True)
