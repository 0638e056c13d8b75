"""Custom: operators of MXNet's classes CustomOp and CustomOpProp."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from symgraph import sym
from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.core.registry import Env
from symgraph.frontend.custom import PROPS
from symgraph.frontend.lower import lower
from symgraph.passes.testing import check_op, run_op
from tests.symgraph.ops.layouts import WHOLE, Split, check_layout

RNG = np.random.default_rng(30)


class Scaled(sg.operator.CustomOp):
    """scale * data * weight, and the sum of both inputs."""

    def __init__(self, scale):
        self.scale = scale

    def forward(self, is_train, req, in_data, out_data, aux):
        data, weight = (x.asnumpy() for x in in_data)
        self.assign(out_data[0], req[0], self.scale * data * weight)
        self.assign(out_data[1], req[1], in_data[0] + in_data[1])
        self.assign(out_data[1], "add", 10.0 if is_train else 0.0)
        self.assign(out_data[1], "null", 99.0)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        data, weight = in_data
        by_product = self.scale * out_grad[0]
        self.assign(in_grad[0], req[0], by_product * weight + out_grad[1])
        self.assign(in_grad[1], req[1], (by_product * data + out_grad[1]).sum(0))


@pytest.fixture
def props(monkeypatch):
    monkeypatch.setattr("symgraph.frontend.custom.PROPS", dict(PROPS))

    @sg.operator.register("scaled")
    class ScaledProp(sg.operator.CustomOpProp):
        per_sample = True

        def __init__(self, scale="1"):
            super().__init__()
            self.scale = float(scale)

        def list_arguments(self):
            return ["data", "weight"]

        def list_outputs(self):
            return ["product", "sum"]

        def infer_shape(self, in_shape):
            return [in_shape[0], in_shape[0][1:]], [in_shape[0]] * 2

        def create_operator(self, ctx, in_shapes, in_dtypes):
            assert ctx == sg.cpu(0)
            assert in_shapes[0][1:] == in_shapes[1]
            return Scaled(self.scale)

    @sg.operator.register("mixed")
    class MixedProp(ScaledProp):
        per_sample = False

    @sg.operator.register("broken")
    class BrokenProp(ScaledProp):
        def infer_shape(self, in_shape):
            return [in_shape[0]], [in_shape[0]]


DATA, WEIGHT = RNG.standard_normal((5, 3)), RNG.standard_normal(3)


@pytest.mark.usefixtures("props")
def test_forward_and_gradients_are_those_of_the_class():
    product, total = run_op("Custom", DATA, WEIGHT, op_type="scaled", scale=3)
    np.testing.assert_allclose(product, 3 * DATA * WEIGHT)
    np.testing.assert_allclose(total, DATA + WEIGHT)
    trained = run_op("Custom", DATA, WEIGHT, op_type="scaled", env=Env(train=True))
    np.testing.assert_allclose(trained[1], DATA + WEIGHT + 10)
    check_op("Custom", DATA, WEIGHT, op_type="scaled", scale="0.5", second=False)


@pytest.mark.usefixtures("props")
def test_micro_batches_of_an_operator_that_keeps_rows_apart():
    for layout, rows in ((Split(0), DATA), (Split(0, outer=2), np.concatenate([DATA, -DATA]))):
        found = check_layout("Custom", [rows, WEIGHT], [layout, WHOLE], 5, (3, 2), op_type="scaled")
        assert found == [layout] * 2
    with pytest.raises(MicroBatchError, match="unless its CustomOpProp says per_sample = True"):
        check_layout("Custom", [DATA, WEIGHT], [Split(0), WHOLE], 5, (3, 2), op_type="mixed")
    with pytest.raises(MicroBatchError, match="takes samples along axis 0"):
        check_layout("Custom", [DATA, WEIGHT], [Split(1), Split(0)], 3, (2, 1), op_type="scaled")


@pytest.mark.usefixtures("props")
def test_names_shapes_and_files():
    net = sym.Custom(sym.Variable("x"), op_type="scaled", scale=2, name="c")
    assert net.list_arguments() == ["x", "c_weight"]
    assert net.list_outputs() == ["c_product", "c_sum"]
    assert net.infer_shape(x=(5, 3)) == ([(5, 3), (3,)], [(5, 3)] * 2, [])
    assert net[0].list_attr() == {"op_type": "scaled", "scale": "2"}
    assert sym.load_json(net.tojson()).tojson() == net.tojson()


@pytest.mark.usefixtures("props")
def test_errors_name_what_is_wrong():
    x = sym.Variable("x")
    with pytest.raises(GraphError, match=r"no CustomOpProp is registered as 'scale'; .*scaled"):
        sym.Custom(x, op_type="scale")
    with pytest.raises(ShapeError, match="Custom 'c': weight of shape \\(2,\\) does not fit"):
        lower(sym.Custom(x, op_type="scaled", name="c"), {"x": (5, 3), "c_weight": (2,)})
    with pytest.raises(ShapeError, match="must return shapes of 2 inputs and of 2 outputs"):
        lower(sym.Custom(x, op_type="broken", name="c"), {"x": (5, 3), "c_weight": (2,)})
    with pytest.raises(TypeError, match="is not a CustomOpProp"):
        sg.operator.register("name")(int)


class Head(sg.operator.CustomOp):
    """The softmax of MXNet's tutorial on custom operators."""

    def forward(self, is_train, req, in_data, out_data, aux):
        x = in_data[0].asnumpy()
        y = np.exp(x - x.max(axis=1).reshape((x.shape[0], 1)))
        y /= y.sum(axis=1).reshape((x.shape[0], 1))
        self.assign(out_data[0], req[0], y)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        assert not out_grad
        label = in_data[1].asnumpy().ravel().astype(int)
        y = out_data[0].asnumpy()
        y[np.arange(label.shape[0]), label] -= 1.0
        self.assign(in_grad[0], req[0], y)


@pytest.mark.usefixtures("props")
def test_a_loss_of_ones_own_in_a_pipeline_is_softmax_output():
    @sg.operator.register("head")
    class HeadProp(sg.operator.CustomOpProp):
        per_sample = True

        def __init__(self):
            super().__init__(need_top_grad=False)

        def list_arguments(self):
            return ["data", "label"]

        def infer_shape(self, in_shape):
            return [in_shape[0], (in_shape[0][0],)], [in_shape[0]], []

        def create_operator(self, ctx, in_shapes, in_dtypes):
            return Head()

    with sg.AttrScope(ctx_group="a"):
        hidden = sym.FullyConnected(sym.Variable("data"), num_hidden=6, name="fc1")
    with sg.AttrScope(ctx_group="b"):
        scores = sym.FullyConnected(sym.tanh(hidden), num_hidden=4, name="fc2")
    found = []
    for head in (
        sym.Custom(data=scores, name="softmax", op_type="head"),
        sym.SoftmaxOutput(data=scores, name="softmax"),
    ):
        groups = {"a": sg.cpu(0), "b": sg.cpu(1)}
        module = sg.mod.Module(
            head, context=sg.cpu(0), group2ctxs=groups, micro_batches=3, schedule="1f1b"
        )
        x, label = np.linspace(-1, 1, 60).reshape(12, 5), np.arange(12) % 4
        train = sg.io.NDArrayIter(x.astype("float32"), label.astype("float32"), batch_size=6)
        with module:
            module.bind(train.provide_data, train.provide_label)
            module.init_params(sg.init.One())
            module.init_optimizer(optimizer_params={"learning_rate": 0.1})
            for batch in train:
                module.forward_backward(batch)
                module.update()
            found.append(module.get_params()[0])
    for name, ours in found[0].items():
        np.testing.assert_allclose(ours, found[1][name], rtol=1e-5, atol=1e-8, err_msg=name)


def test_a_numpy_op_computes_on_numpys_arrays():
    """MXNet's older class: a softmax with the gradient of cross entropy, used in two nodes."""

    class Softmax(sg.operator.NumpyOp):
        def list_arguments(self):
            return ["data", "label"]

        def infer_shape(self, in_shape):
            return [in_shape[0], in_shape[0][:1]], [in_shape[0]]

        def forward(self, in_data, out_data):
            assert type(in_data[0]) is np.ndarray
            out_data[0][:] = np.exp(in_data[0])
            out_data[0] /= out_data[0].sum(axis=1, keepdims=True)

        def backward(self, out_grad, in_data, out_data, in_grad):
            in_grad[0][:] = out_data[0]
            in_grad[0][np.arange(2), in_data[1].astype(int)] -= 1

    op = Softmax(need_top_grad=False)
    net = op(data=op(sym.Variable("x"), name="first"), name="last")
    assert net.list_arguments() == ["x", "first_label", "last_label"]
    x = np.log(np.array([[1, 3], [1, 1]], "float32"))
    with op(data=sym.Variable("x"), name="one").simple_bind(x=(2, 2)) as executor:
        (output,) = executor.forward(is_train=True, x=x, one_label=np.array([0, 1]))
        np.testing.assert_allclose(output, [[0.25, 0.75], [0.5, 0.5]], 1e-6)
        executor.backward()
        np.testing.assert_allclose(executor.grad_dict["x"], [[-0.75, 0.75], [0.5, -0.5]], 1e-6)
