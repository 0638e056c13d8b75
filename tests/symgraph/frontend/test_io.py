"""Data iterators: what a batch holds, how an epoch ends, and what order samples come in."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from symgraph.core.errors import ConfigError, GraphError, ShapeError
from symgraph.frontend import io
from symgraph.frontend.io import DataBatch, DataDesc, DataIter, NDArrayIter, describe

DATA = np.arange(20.0).reshape(10, 2)
LABEL = np.arange(10)


def firsts(it: NDArrayIter) -> list[list[int]]:
    """The numbers of the samples in each batch of an epoch."""
    return [(batch.data[0][:, 0] // 2).astype(int).tolist() for batch in it]


def test_a_description():
    desc = DataDesc("data", [3, 4], "int32", "TN")
    name, shape = desc
    assert (name, shape, desc.dtype, desc.layout) == ("data", (3, 4), "int32", "TN")
    assert (desc.feed.axis, desc.feed.type.shape) == (1, (3, 4))
    assert str(desc) == "DataDesc[data,(3, 4),int32,TN]"
    again = pickle.loads(pickle.dumps(desc))
    assert (again, again.layout) == (desc, "TN")
    assert describe(("x", (2, 3))).dtype == "float32"
    assert describe(["x", (2, 3), "int32", "NT"]).layout == "NT"
    assert describe(desc) is desc
    assert [DataDesc.get_batch_axis(layout) for layout in ("NTC", "TNC", "T", None)] == [0, 1, 0, 0]


def test_what_is_provided():
    it = NDArrayIter({"a": DATA, "b": DATA.astype("int64")}, LABEL, batch_size=4)
    assert [(d.name, d.shape, d.dtype) for d in it.provide_data] == [
        ("a", (4, 2), "float32"),
        ("b", (4, 2), "int64"),
    ]
    assert [(d.name, d.shape) for d in it.provide_label] == [("softmax_label", (4,))]
    assert [d.name for d in NDArrayIter([DATA, DATA]).provide_data] == ["_0_data", "_1_data"]
    assert [d.name for d in NDArrayIter([DATA], data_name="x").provide_data] == ["x"]
    batch = next(it)
    np.testing.assert_array_equal(batch.data[0], DATA[:4])
    np.testing.assert_array_equal(batch.label[0], LABEL[:4])
    assert batch.data[0].dtype == "float32"
    timewise = NDArrayIter(DATA.T, batch_size=4, layout="TN")
    assert timewise.provide_data[0].shape == (2, 4)
    np.testing.assert_array_equal(next(timewise).data[0], DATA.T[:, :4])


@pytest.mark.parametrize(
    ("handle", "epochs"),
    [
        ("pad", [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]] * 2),
        ("discard", [[[0, 1, 2, 3], [4, 5, 6, 7]]] * 2),
        ("roll_over", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[8, 9, 0, 1], [2, 3, 4, 5], [6, 7, 8, 9]]]),
    ],
)
def test_samples_that_do_not_fill_a_batch(handle, epochs):
    it = NDArrayIter(DATA, LABEL, 4, last_batch_handle=handle)
    found = [firsts(it)]
    it.reset()
    assert [*found, firsts(it)] == epochs
    it.hard_reset()
    assert firsts(it)[0] == [0, 1, 2, 3]


def test_padding_is_counted():
    batches = list(NDArrayIter(DATA, LABEL, 4))
    assert [b.pad for b in batches] == [0, 0, 2]
    assert batches[-1].index.tolist() == [8, 9, 0, 1]
    (small,) = NDArrayIter(DATA[:3], batch_size=8)
    assert (small.pad, small.index.tolist()) == (5, [0, 1, 2, 0, 1, 2, 0, 1])


def test_shuffling_is_by_seed_and_epoch():
    def epochs(seed: int) -> list[list[list[int]]]:
        it, found = NDArrayIter(DATA, LABEL, 5, shuffle=True, seed=seed), []
        for _ in range(3):
            found.append(firsts(it))
            it.reset()
        return found

    first = epochs(0)
    assert epochs(0) == first != epochs(1)
    assert len({str(epoch) for epoch in first}) == 3
    assert all(sorted(n for batch in epoch for n in batch) == list(range(10)) for epoch in first)
    for batch in NDArrayIter(DATA, LABEL, 5, shuffle=True):
        np.testing.assert_array_equal(batch.data[0][:, 0], 2 * batch.label[0])


def test_mistakes():
    with pytest.raises(ConfigError, match="last_batch_handle='rollover'; did you mean 'roll_over'"):
        NDArrayIter(DATA, last_batch_handle="rollover")
    with pytest.raises(ShapeError, match=r"the same number of samples, .* 'softmax_label': 9"):
        NDArrayIter(DATA, LABEL[:9])
    with pytest.raises(ConfigError, match="10 samples do not fill a batch of 11"):
        NDArrayIter(DATA, batch_size=11, last_batch_handle="discard")
    with pytest.raises(GraphError, match=r"data 'data' is complex128\[2\], not samples"):
        NDArrayIter(np.zeros(2, complex))
    for size in (0, -3, 2.0):  # 0 gave batches for ever
        with pytest.raises(ConfigError, match=f"batch_size is {size}, but must be a number of 1"):
            NDArrayIter(DATA, batch_size=size)
    with pytest.raises(ConfigError, match="0 samples do not fill a batch of 2"):
        NDArrayIter(DATA[:0], batch_size=2)
    with pytest.raises(TypeError, match="data of a batch must be a list of arrays, not ndarray"):
        DataBatch(DATA)
    with pytest.raises(TypeError, match="label of a batch must be a list of arrays, not ndarray"):
        DataBatch([DATA], LABEL)
    with pytest.raises(
        TypeError, match="'data' does not describe an input: pass a list of DataDescs"
    ):
        describe("data")


class Halves(DataIter):
    """As users of MXNet write them: what it provides is set, and its batches are in parts."""

    def __init__(self):
        super().__init__(5)
        self.provide_data, self.provide_label = [("data", (5, 2))], []
        self.at = 0

    def reset(self):
        self.at = 0

    def iter_next(self):
        self.at += 1
        return self.at <= 2

    def getdata(self):
        return [DATA[5 * self.at - 5 : 5 * self.at]]


def test_an_iterator_of_ones_own():
    """It could not be made."""
    mine = Halves()
    for _ in range(2):
        first, second = mine
        np.testing.assert_array_equal([*first.data[0], *second.data[0]], DATA)
        assert (first.pad, first.label, first.index) == (0, [], None)
        mine.reset()
    with pytest.raises(NotImplementedError, match="DataIter has neither next nor iter_next"):
        next(DataIter())


def test_a_batch_in_parts():
    whole, parts = NDArrayIter(DATA, LABEL, 4), NDArrayIter(DATA, LABEL, 4)
    for batch in whole:
        assert parts.iter_next()
        np.testing.assert_array_equal(parts.getdata(), batch.data)
        np.testing.assert_array_equal(parts.getlabel(), batch.label)
        np.testing.assert_array_equal(parts.getindex(), batch.index)
        assert parts.getpad() == batch.pad
    assert not parts.iter_next()


# -- iterators over files, and around others -----------------------------------------------------


def idx(path, array):
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(head + array.astype("u1").tobytes())
    return path


def test_mnist(tmp_path):
    """As MXNet's: numbers below 1, incomplete batches left out, parts for processes."""
    pixels = np.arange(10 * 6).reshape(10, 2, 3)
    image, label = idx(tmp_path / "i", pixels), idx(tmp_path / "l", np.arange(10))
    whole = io.MNISTIter(image, label, batch_size=4, shuffle=False)
    assert [str(d) for d in whole.provide_data] == ["DataDesc[data,(4, 1, 2, 3),float32,NCHW]"]
    first, second = whole
    np.testing.assert_array_equal(second.data[0][:, 0], pixels[4:8] / np.float32(256))
    assert first.label[0].tolist() == [0, 1, 2, 3]
    half = io.MNISTIter(image, label, 5, False, True, num_parts=2, part_index=1)
    assert [(b.data[0].shape, b.label[0].tolist()) for b in half] == [((5, 6), [5, 6, 7, 8, 9])]
    with pytest.raises(ConfigError, match="part_index is 2, but there are 2 parts"):
        io.MNISTIter(image, label, num_parts=2, part_index=2)
    with pytest.raises(ConfigError, match="not images and a label for each"):
        io.MNISTIter(label, label)


def test_tables(tmp_path):
    (tmp_path / "x.csv").write_text("1,2,3,4\n5,6,7,8\n9,10,11,12\n")
    (tmp_path / "y.csv").write_text("1\n0\n1\n")
    made = list(io.CSVIter(tmp_path / "x.csv", (2, 2), tmp_path / "y.csv", batch_size=2))
    assert [b.pad for b in made] == [0, 1]
    assert made[1].data[0][0].tolist() == [[9, 10], [11, 12]]
    assert made[0].label[0].tolist() == [1, 0]
    rest = io.CSVIter(tmp_path / "x.csv", (4,), batch_size=2, round_batch=False)
    assert [b.pad for b in rest] == [0, 1]  # as in MXNet, no sample is left out
    with pytest.raises(ShapeError, match="has 4 numbers a line, but a sample of shape"):
        io.CSVIter(tmp_path / "x.csv", (3,))


def test_libsvm(tmp_path):
    (tmp_path / "x.t").write_text("1.0 0:0.5 2:1.2\n-2.0\n\n3.0 1:4\n")
    (made,) = io.LibSVMIter(tmp_path / "x.t", (3,), batch_size=3)
    np.testing.assert_allclose(made.data[0], [[0.5, 0, 1.2], [0, 0, 0], [0, 4, 0]])
    assert made.label[0].tolist() == [1, -2, 3]
    with pytest.raises(ConfigError, match=r"x\.t, line 1: index 2 is out of bounds"):
        io.LibSVMIter(tmp_path / "x.t", (2,))


def test_epochs_of_another_length():
    made = io.ResizeIter(io.NDArrayIter(np.arange(4), batch_size=2), 3)
    assert [b.data[0].tolist() for b in made] == [[0, 1], [2, 3], [0, 1]]
    made.reset()
    assert len(list(made)) == 3


def test_batches_made_ahead():
    parts = [io.NDArrayIter(np.arange(4) + 10 * i, np.arange(4), 2) for i in range(2)]
    made = io.PrefetchingIter(parts, [{"data": "a"}, {"data": "b"}], [{}, {"softmax_label": "y"}])
    assert [d.name for d in made.provide_data + made.provide_label] == [
        "a",
        "b",
        "softmax_label",
        "y",
    ]
    for _ in range(2):
        assert [[a.tolist() for a in b.data] for b in made] == [
            [[0, 1], [10, 11]],
            [[2, 3], [12, 13]],
        ]
        made.reset()
    next(made)
    made.reset()
    assert len(list(made)) == 2
    short = io.NDArrayIter(np.arange(2), batch_size=2)
    joined = io.PrefetchingIter([io.NDArrayIter(np.arange(4), batch_size=2), short])
    next(joined)
    with pytest.raises(ConfigError, match="end at different samples"):
        next(joined)
