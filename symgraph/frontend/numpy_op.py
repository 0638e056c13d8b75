"""NumpyOp: operators that users write with arrays of numpy, as objects (MXNet's, before CustomOp).

Each object is registered as a Custom operator of its own. The object computes every call, so what
`forward` keeps in an attribute is there in `backward` as long as there is one micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from symgraph.core.context import Context
from symgraph.core.types import Array
from symgraph.frontend.custom import CustomOp, CustomOpProp, register_custom
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol

_numbers = count()


class NumpyOp:
    """An operator to be derived from (`mx.operator.NumpyOp`); calling it makes a symbol.

    Args:
        need_top_grad: whether `backward` needs the gradients of the outputs; without them the
            operator is a loss, which starts the backward pass.
    """

    def __init__(self, need_top_grad: bool = True) -> None:
        self.need_top_grad_ = need_top_grad
        self._op_type = f"_numpy_op{next(_numbers)}"
        self._registered = False

    def need_top_grad(self) -> bool:
        """Tell whether `backward` needs the gradients of the outputs."""
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

    def forward(self, in_data: Sequence[Array], out_data: Sequence[Array]) -> None:
        """Write the outputs into out_data; by default the first input."""
        out_data[0][:] = in_data[0]

    def backward(
        self,
        out_grad: Sequence[Array],
        in_data: Sequence[Array],
        out_data: Sequence[Array],
        in_grad: Sequence[Array],
    ) -> None:
        """Write the gradients of the inputs into in_grad; by default 1."""
        in_grad[0][:] = 1.0

    def __call__(self, *args: Symbol, name: str | None = None, **kwargs: Symbol) -> Symbol:
        """Return a symbol of the operator on these inputs, by position or name."""
        if not self._registered:
            register_custom(self._op_type)(_prop_of(self))
            self._registered = True
        params = {**kwargs, "op_type": self._op_type}
        return Symbol(call("Custom", type(self).__name__.lower(), args, params, name))

    get_symbol = __call__


def _prop_of(op: NumpyOp) -> type[CustomOpProp]:
    class Prop(CustomOpProp):
        def __init__(self) -> None:
            super().__init__(op.need_top_grad())

        def list_arguments(self) -> list[str]:
            return op.list_arguments()

        def list_outputs(self) -> list[str]:
            return op.list_outputs()

        def infer_shape(self, in_shape: list[list[int]]) -> Sequence[Any]:
            return op.infer_shape(in_shape)

        def create_operator(
            self, ctx: Context, in_shapes: list[list[int]], in_dtypes: list[Any]
        ) -> CustomOp:
            return _Computation(op)

    return Prop


class _Computation(CustomOp):
    """The calls of a NumpyOp, with numpy's own arrays."""

    def __init__(self, op: NumpyOp) -> None:
        self._op = op

    def forward(self, is_train: bool, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
        self._op.forward(in_data=_plain(in_data), out_data=_plain(out_data))

    def backward(
        self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any
    ) -> None:
        self._op.backward(
            out_grad=_plain(out_grad),
            in_data=_plain(in_data),
            out_data=_plain(out_data),
            in_grad=_plain(in_grad),
        )


def _plain(arrays: Sequence[Any]) -> list[Array]:
    return [np.asarray(a) for a in arrays]
