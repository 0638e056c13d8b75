"""Arrays with MXNet's methods, and operators on arrays."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

import symgraph as mx
from symgraph.core.errors import ConfigError, GraphError, ShapeError

DATA = Path(__file__).parent.parent / "data"


def counted(*shape):
    return mx.nd.arange(int(np.prod(shape))).reshape(shape)


# -- arrays ----------------------------------------------------------------------------------------


def test_values_that_are_no_ndarray_become_float32_as_in_mxnet():
    for source in ([1, 2], np.array([1.0, 2.0]), np.array([1, 2])):
        assert mx.nd.array(source).dtype == np.float32
    ids = mx.nd.array([1, 2], dtype="int32")
    assert mx.nd.array(ids).dtype == np.int32
    other = mx.nd.array(ids)
    other[:] = 0
    assert ids.asnumpy().tolist() == [1, 2]


def test_one_number_is_an_array_of_one_element():
    x = counted(2, 3)
    for one, value in ((x[1, 2], 5.0), (x.sum(), 15.0), (x[1][0], 3.0), (np.max(x), 5.0)):
        assert (one.asscalar(), float(one), int(one)) == (value, value, value)
        assert one.asnumpy().shape == (1,)
        assert type(one.asnumpy()) is np.ndarray
        assert f"{one:.1f} {one}" == f"{value} {value}"
    x[1][0][...] = 9  # a view, as in MXNet
    assert x.asnumpy()[1, 0] == 9
    with pytest.raises(ValueError, match=r"shape \(2, 3\) is not a single number"):
        x.asscalar()
    assert repr(x).endswith("\n<NDArray 2x3 @cpu(0)>")


def test_shapes_follow_mxnet_where_numpy_has_the_same_name():
    x = counted(2, 3, 4)
    assert x.reshape((0, -1)).shape == x.flatten().shape == (2, 12)
    assert x.reshape(-3, 4).shape == x.reshape(shape=(6, 4)).shape == (6, 4)
    assert x.reshape(-1).shape == x.flatten("C").shape == (24,)
    assert x.transpose(axes=(2, 0, 1)).shape == x.transpose(2, 0, 1).shape == (4, 2, 3)
    assert x.T.shape == (4, 3, 2)
    rows = x.take(mx.nd.array([1, 7]))
    assert (rows.asnumpy() == x.asnumpy()[[1, 1]]).all()
    assert np.take(x, 23) == 23
    assert x[mx.nd.array([1])].shape == (1, 3, 4)
    assert x.expand_dims(axis=0).slice_axis(axis=1, begin=0, end=1).shape == (1, 1, 3, 4)


def test_devices_are_remembered_and_copies_are_copies():
    x = mx.nd.ones((2, 2), mx.cpu(1))
    with mx.cpu(3):
        here = mx.nd.zeros(2)
    assert (x.context, (x + 1)[0].context, here.ctx) == (mx.cpu(1), mx.cpu(1), mx.cpu(3))
    assert x.as_in_context(mx.cpu(1)) is x
    there = x.as_in_context(mx.cpu(2))
    there[:] = 5
    assert (there.context, float(x.sum())) == (mx.cpu(2), 4.0)
    assert there.copyto(x) is x
    assert float(x.sum()) == 20
    again = pickle.loads(pickle.dumps(x))
    assert (again.asnumpy() == 5).all()
    x.wait_to_read()
    mx.nd.waitall()
    with pytest.raises(GraphError, match=r"shape \(2, 2\) into one of \(2,\)"):
        x.copyto(here)


# -- operators -------------------------------------------------------------------------------------


def test_operators_take_arrays_where_sym_takes_symbols():
    x = mx.nd.array([[1, 2], [3, 4]])
    fc = mx.nd.FullyConnected(x, mx.nd.ones((3, 2)), bias=mx.nd.zeros(3), num_hidden=3)
    assert fc.asnumpy().tolist() == [[3, 3, 3], [7, 7, 7]]
    first, second = mx.nd.split(x, num_outputs=2, axis=1)
    assert (mx.nd.concat(first, second, dim=1) == x).all()
    assert mx.nd.maximum(x, 3).asnumpy().tolist() == [[3, 3], [3, 4]]
    assert mx.nd.array(x, dtype="half").dtype == "float16"
    assert (mx.nd.power(0.5, 2), mx.nd.maximum(2, 3), mx.nd.divide(1, 2)) == (0.25, 3, 0.5)
    assert mx.nd.norm(x).shape == mx.nd.sum(x).shape == (1,)
    assert mx.nd.softmax(x, axis=0).context == mx.cpu(0)
    assert mx.nd.divide(x, 2).asnumpy().tolist() == [[0.5, 1], [1.5, 2]]
    assert mx.nd.equal(x, 2).dtype == np.float32
    with mx.AttrScope(ctx_group="a"), mx.name.Prefix("p_"):
        assert mx.nd.exp(mx.nd.zeros(2)).asnumpy().tolist() == [1, 1]


def test_operators_write_to_out_and_never_return_their_input():
    x, out = counted(2, 2), mx.nd.zeros((2, 2))
    assert mx.nd.square(x, out=out) is out
    assert out.asnumpy().tolist() == [[0, 1], [4, 9]]
    same = mx.nd.Reshape(x, shape=(2, 2))
    same[:] = 7
    assert float(x.sum()) == 6


def test_what_an_operator_lacks_is_named():
    x = counted(2, 2)
    with pytest.raises(
        GraphError, match=r"nd\.FullyConnected: an array for '.*_weight' is missing"
    ):
        mx.nd.FullyConnected(x, num_hidden=3)
    with pytest.raises(ShapeError):
        mx.nd.dot(x, counted(3, 2))
    with pytest.raises(AttributeError, match=r"symgraph\.nd has no 'sofmax'; did you mean 'soft"):
        mx.nd.sofmax(x)
    with pytest.raises(AttributeError, match=r"no nd\.sparse: arrays are dense"):
        _ = mx.nd.sparse


def test_random_arrays_are_a_function_of_the_seed():
    def draw():
        mx.random.seed(5)
        return [
            mx.random.uniform(-1, 1, shape=(2, 3)),
            mx.nd.random.uniform(-1, 1, shape=(2, 3)),
            mx.nd.random_normal(shape=6),
            mx.nd.random.shuffle(mx.nd.arange(6)),
        ]

    one, two = draw(), draw()
    assert all((a == b).all() for a, b in zip(one, two, strict=True))
    assert not (one[0] == one[1]).any()
    assert sorted(one[3].tolist()) == [0, 1, 2, 3, 4, 5]
    mx.random.seed(6)
    assert not (mx.random.uniform(-1, 1, shape=(2, 3)) == one[0]).any()
    mx.random.seed(0)


# -- files -----------------------------------------------------------------------------------------


def test_a_list_is_read_and_written_as_mxnet_does(tmp_path):
    first, second = mx.nd.load(DATA / "mxnet_list.params")
    assert first.asnumpy().tolist() == [0, 1, 2]
    assert (second.dtype, second.shape) == (np.int8, (2, 2))
    mx.nd.save(tmp_path / "again", [first, second])
    whole = (DATA / "mxnet_list.params").read_bytes()
    assert (tmp_path / "again").read_bytes() == whole
    mx.nd.save(str(tmp_path / "one"), first)
    (one,) = mx.nd.load(str(tmp_path / "one"))
    assert (one == first).all()
    mx.nd.save(tmp_path / "named", {"a": first})
    assert mx.nd.load(tmp_path / "named")["a"].asnumpy().tolist() == [0, 1, 2]


def test_arrays_of_old_files(tmp_path):
    """Such a file, in the layouts of MXNet 0.11 and 0.8; MXNet 1.9.1 reads the same of it."""
    newer = struct.pack("<IIqqiii", 0xF993FAC8, 2, 1, 2, 1, 0, 0) + np.float32([1, 2]).tobytes()
    older = struct.pack("<IIiii", 1, 3, 1, 0, 4) + np.int32([3, 4, 5]).tobytes()
    file = tmp_path / "old"
    file.write_bytes(struct.pack("<QQQ", 0x112, 0, 2) + newer + older + bytes(8))
    assert [a.asnumpy().tolist() for a in mx.nd.load(file)] == [[[1, 2]], [3, 4, 5]]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (struct.pack("<Ii", 0xF993FAC9, 1), "of storage 1 is not dense: .* tostype"),
        (struct.pack("<IiIqiii", 0xF993FAC9, 0, 1, 4, 1, 0, 12), "number 12; dtypes are 0"),
        (struct.pack("<IiI", 0xF993FAC9, 0, 2**31), "of 2147483648 axes"),
        (struct.pack("<IiIqq", 0xF993FAC9, 0, 2, 2**62, 4) + bytes(12), "ends at byte"),
        (struct.pack("<IiIq", 0xF993FAC9, 0, 1, -4) + bytes(12), r"shape \(-4,\)"),
        (struct.pack("<I", 0xF993FACB), "of kind 0xf993facb"),
        (struct.pack("<IiI", 0xF993FAC9, 0, 0), "never filled"),
    ],
)
def test_hostile_files_are_one_error(tmp_path, array, words):
    file = tmp_path / "x.params"
    file.write_bytes(struct.pack("<QQQ", 0x112, 0, 2**40) + array)
    with pytest.raises(ConfigError, match=f"x.params: not a parameter file .*{words}") as caught:
        mx.nd.load(file)
    assert "\n" not in str(caught.value)


# -- what is left out ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["autograd", "contrib", "gluon", "image", "recordio"])
def test_what_is_left_out_names_the_page(name):
    words = rf"symgraph has no {name}: .*docs/from_mxnet\.md, 'Left out on purpose'"
    with pytest.raises(AttributeError, match=words):
        getattr(mx, name)
    assert not hasattr(mx, name)
    for statement in (f"from symgraph import {name}", f"import symgraph.{name}"):
        with pytest.raises(ImportError, match=words):
            exec(statement)


def test_gpus_are_counted():
    count = mx.context.num_gpus()
    assert count >= 0
    if not count:
        with pytest.raises(mx.SymgraphError, match=r"gpu\(0\) cannot be used"):
            mx.gpu_memory_info(0)
