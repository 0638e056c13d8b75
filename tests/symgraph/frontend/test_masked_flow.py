"""sym.contrib.while_loop and cond: numbers by hand, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from symgraph import sym
from symgraph.core.errors import GraphError, ShapeError
from tests.symgraph.running import run


def run_with_gradients(net, heads, **values):
    """The outputs, and the gradients of all arguments."""
    arrays = {name: np.array(value, "float32") for name, value in values.items()}
    with net.simple_bind(**{name: array.shape for name, array in arrays.items()}) as executor:
        outputs = [np.array(o) for o in executor.forward(is_train=True, **arrays)]
        executor.backward(
            [np.full(o.shape, h, "float32") for o, h in zip(outputs, heads, strict=True)]
        )
        return outputs, {n: np.array(g) for n, g in executor.grad_dict.items()}


def test_a_loop_ends_when_its_condition_does():
    """Three of six iterations: outputs s w of s = 2, 2 + w, 2 + w + 2 w, with i = 1, 2, 3."""
    i, s, w = map(sym.Variable, "isw")
    [out], (last, total) = sym.contrib.while_loop(
        lambda i, s: i < 4, lambda i, s: ([s * w], [i + 1, s + i * w]), [i, s], max_iterations=6
    )
    net = sym.load_json(sym.Group([out, last, total]).tojson())
    outputs, gradients = run_with_gradients(net, (1, 0, 0), i=[1], s=[2], w=[3])
    np.testing.assert_array_equal(outputs[0][:, 0], [6, 15, 33, 0, 0, 0])
    assert (outputs[1], outputs[2]) == (4, 20)
    # of 3 s w + (3 i + 1) w ** 2
    assert {n: g.tolist() for n, g in gradients.items()} == {"i": [27], "s": [9], "w": [30]}


def test_a_loop_of_one_variable_may_not_begin_or_be_cut_short():
    x = sym.Variable("x")
    outputs, end = sym.contrib.while_loop(
        lambda x: sym.sum(x) < 20, lambda x: (None, x * 2), x, max_iterations=3
    )
    assert outputs == []
    for first, last in (([20, 1], [20, 1]), ([4, 2], [16, 8]), ([1, 0], [8, 0])):
        np.testing.assert_array_equal(run(end, x=np.array(first, "float32"))[0], last)


@pytest.mark.parametrize(("flag", "value", "of_a", "of_b"), [(1, 8, 2, 0), (0, 9, 0, 6)])
def test_cond_chooses_a_branch(flag, value, of_a, of_b):
    a, b, flag_ = map(sym.Variable, ("a", "b", "flag"))
    net, [same] = sym.contrib.cond(sym.max(flag_) > 0, lambda: (a * 2, [a]), lambda: (b * b, [b]))
    outputs, gradients = run_with_gradients(
        sym.Group([net, same]), (1, 0), a=np.full((2, 3), 4), b=np.full((2, 3), 3), flag=[0, flag]
    )
    np.testing.assert_array_equal(outputs[0], np.full((2, 3), value))
    np.testing.assert_array_equal(outputs[1], np.full((2, 3), 4 if flag else 3))
    np.testing.assert_array_equal(gradients["a"], np.full((2, 3), of_a))
    np.testing.assert_array_equal(gradients["b"], np.full((2, 3), of_b))


def test_errors_say_what_is_missing():
    x = sym.Variable("x")
    with pytest.raises(GraphError, match=r"max_iterations=None is not .*docs/from_mxnet.md"):
        sym.contrib.while_loop(lambda x: x < 3, lambda x: (x, x), x)
    with pytest.raises(GraphError, match="are not nested as"):
        sym.contrib.while_loop(lambda x: x < 3, lambda x: (x, x), [x], max_iterations=2)
    with pytest.raises(TypeError, match="the condition is a symbol of one element, not True"):
        sym.contrib.while_loop(lambda x: True, lambda x: (x, [x]), [x], max_iterations=2)
    with pytest.raises(GraphError, match="nest both alike"):
        sym.contrib.cond(x, lambda: x, lambda: [x])
    with pytest.raises(ShapeError, match="Reshape"):
        sym.contrib.cond(x, lambda: x, lambda: x).infer_shape(x=(3,))
