"""User-defined operators: everything needed to write the rules of one, in one namespace.

    from symgraph import operator as op

    op.register(name="swish", inputs=("data",), shape=op.same, compute=..., grad=...)
    sg.sym.swish(x)

Operators are known only by their rules, so yours are placed, cut, priced and run on micro-batches
like any other. MXNet's classes are here as well, with `register` as their decorator:

    @op.register("softmax")
    class SoftmaxProp(op.CustomOpProp): ...

    sg.sym.Custom(x, op_type="softmax")

See docs/operators.md.
"""

from collections.abc import Callable
from typing import Any, overload

from symgraph.core.batch_layout import bilinear, elementwise, linear
from symgraph.core.params import (
    Site,
    boolean,
    choice,
    dtype,
    integer,
    integers,
    number,
    optional,
)
from symgraph.core.ref import Ref, apply, apply_all
from symgraph.core.registry import (
    Call,
    Env,
    OpDef,
    if_unchanged,
    no_flops,
    output_size,
    same_dtype,
    same_memory,
)
from symgraph.core.registry import register as register_rules
from symgraph.core.shapes import broadcast, same
from symgraph.frontend.custom import CustomOp, CustomOpProp, Prop, register_custom
from symgraph.frontend.numpy_op import NumpyOp
from symgraph.passes.testing import check_op, run_op


@overload
def register(reg_name: str, /) -> Callable[[Prop], Prop]: ...
@overload
def register(**fields: Any) -> OpDef: ...
def register(reg_name: str | None = None, /, **fields: Any) -> Any:
    """Add an operator by its rules, or return the decorator of a CustomOpProp.

    Args:
        reg_name: the name for `sym.Custom(op_type=...)`, alone (`mx.operator.register`).
        **fields: OpDef's fields.

    Raises:
        GraphError: for a name or alias that is taken; the class of a CustomOpProp is replaced.
    """
    return register_rules(**fields) if reg_name is None else register_custom(reg_name)


__all__ = [
    "Call",
    "CustomOp",
    "CustomOpProp",
    "Env",
    "NumpyOp",
    "OpDef",
    "Ref",
    "Site",
    "apply",
    "apply_all",
    "bilinear",
    "boolean",
    "broadcast",
    "check_op",
    "choice",
    "dtype",
    "elementwise",
    "if_unchanged",
    "integer",
    "integers",
    "linear",
    "no_flops",
    "number",
    "optional",
    "output_size",
    "register",
    "run_op",
    "same",
    "same_dtype",
    "same_memory",
]
