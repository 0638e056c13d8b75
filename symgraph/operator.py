"""User-defined operators: everything needed to write the rules of one, in one namespace.

    from symgraph import operator as op

    op.register(name="swish", inputs=("data",), shape=op.same, compute=..., grad=...)
    sg.sym.swish(x)

Operators are known only by their rules, so yours are placed, cut, priced and run on micro-batches
like any other. See docs/operators.md. Corresponds to MXNet's `operator.CustomOp`.
"""

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
    register,
    same_dtype,
    same_memory,
)
from symgraph.core.shapes import broadcast, same
from symgraph.passes.testing import check_op, run_op

__all__ = [
    "Call",
    "Env",
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
