"""NumpyOp: an operator written with numpy in one class, as before CustomOp (MXNet's NumpyOp)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from symgraph.frontend.custom import CustomOp, CustomOpProp, register_custom
from symgraph.frontend.ndarray import NDArray
from symgraph.frontend.namespace import operator
from symgraph.frontend.symbol import Symbol

_numbers = count()


class NumpyOp:
    """An operator to be derived from (`mx.operator.NumpyOp`); calling it makes a symbol.

    A call of one object is one operator `Custom`, which a file cannot hold.

    Args:
        need_top_grad: whether `backward` needs the gradients of the outputs; without them the
            operator is a loss.
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad

    def need_top_grad(self) -> bool:
        """Return whether `backward` needs the gradients of the outputs."""
        return self.need_top_grad_

    def list_arguments(self) -> list[str]:
        """Return the names of the inputs."""
        return ["data"]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return ["output"]

    def infer_shape(self, in_shape: list[list[int]]) -> Sequence[Any]:
        """Return the shapes of inputs and outputs, given those of the inputs ([] if unknown)."""
        return in_shape, [in_shape[0]]

    def forward(self, in_data: Sequence[NDArray], out_data: Sequence[NDArray]) -> None:
        """Compute the outputs in place; those of this class are the first input."""
        out_data[0][:] = in_data[0]

    def backward(
        self,
        out_grad: Sequence[NDArray],
        in_data: Sequence[NDArray],
        out_data: Sequence[NDArray],
        in_grad: Sequence[NDArray],
    ) -> None:
        """Compute the gradients of the inputs in place; that of this class is 1."""
        in_grad[0][:] = 1.0

    def get_symbol(self, *args: Any, **kwargs: Any) -> Symbol:
        """Return a symbol of the operator; arguments: as of `sym.Custom`."""
        op_type = f"{type(self).__name__}{next(_numbers)}"
        register_custom(op_type)(_prop(self))
        made: Symbol = operator("Custom")(*args, op_type=op_type, **kwargs)
        return made

    __call__ = get_symbol


class _Computation(CustomOp):
    def __init__(self, op: NumpyOp) -> None:
        self._op = op

    def forward(
        self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any
    ) -> None:
        self._op.forward(in_data, out_data)

    def backward(
        self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
    ) -> None:
        self._op.backward(out_grad, in_data, out_data, in_grad)


def _prop(op: NumpyOp) -> type[CustomOpProp]:
    class Prop(CustomOpProp):
        def __init__(self) -> None:
            super().__init__(op.need_top_grad())

        def list_arguments(self) -> list[str]:
            return op.list_arguments()

        def list_outputs(self) -> list[str]:
            return op.list_outputs()

        def infer_shape(self, in_shape: list[list[int]]) -> Sequence[Any]:
            return (*op.infer_shape(in_shape), [])

        def create_operator(self, ctx: Any, in_shapes: Any, in_dtypes: Any) -> CustomOp:
            return _Computation(op)

    return Prop
