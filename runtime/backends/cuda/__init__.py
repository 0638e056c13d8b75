"""GPU kernels by operator; an operator without one runs its array computation in CuPy.

May import device; stands beside cpu.
Start reading: base.py; softmax.py and softmax.cu are a pair of kernel and source.
"""

from __future__ import annotations

from runtime.backends.cuda import (  # noqa: F401  (they fill the table)
    attention,
    conv,
    dropout,
    flat,
    gates,
    labels,
    linear,
    lines,
    movement,
    norm,
    pool,
    reductions,
    rows,
    sequence,
    softmax,
)
from runtime.backends.cuda.base import KERNELS

__all__ = ["BESIDE", "KERNELS"]

#: Operators that give gradients of parameters: long calls for whose outputs nothing waits but the
#: end of the step, so that a CUDA graph can run them beside the chain of short ones.
BESIDE = frozenset({"_fc_grad_weight", "_conv_grad_weight", "_sum_rows"})
