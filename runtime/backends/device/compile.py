"""Compiled loops: numba's options, and the LLVM types and calls that loops are written with."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, types

from partitioner.base.compiled import compiled, inner

# Flags that neither lose NaN and infinity nor change the order of a sum.
FAST = {"contract", "nsz", "arcp", "afn"}

I8, I32, I64 = (ir.IntType(bits) for bits in (8, 32, 64))
VOID = ir.VoidType()
intrinsic: Any = extending.intrinsic  # numba types the rule that is given, not what becomes of it


#: Compile at the first call and cache the code on disk; it runs without the GIL.
jit = compiled(nogil=True, fastmath=FAST, error_model="numpy")
#: Compile as a part of each function that calls it, which saves to compile it twice; else as `jit`.
jit_inside = compiled(nogil=True, fastmath=FAST, error_model="numpy", inline="always")
#: Compile a sum, which may run in parallel partial sums of a fixed order; else as `jit`.
jit_reassoc = compiled(nogil=True, fastmath=FAST | {"reassoc"}, error_model="numpy")
#: Compile what only compiled loops call; else as `jit` and `jit_reassoc`.
jit_inner = inner(fastmath=FAST, error_model="numpy")
jit_inner_reassoc = inner(fastmath=FAST | {"reassoc"}, error_model="numpy")
#: Compile arithmetic that gives numpy's bits; else as `jit`.
jit_exact = compiled(nogil=True, error_model="numpy")


def call_llvm(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """Emit a call of the LLVM intrinsic `llvm.<name>`."""
    kind = ir.FunctionType(result, [a.type for a in args])
    function = builder.module.globals.get(f"llvm.{name}")
    return builder.call(function or ir.Function(builder.module, kind, f"llvm.{name}"), args)


@intrinsic  # type: ignore[untyped-decorator]
def out_of_line(typing: Any) -> Any:
    """Keep the function that calls this a function of its own in compiled code: it is large."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate
