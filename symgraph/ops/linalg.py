"""Linear algebra on the matrices in the last two axes (BLAS 3 and LAPACK): MXNet's `linalg`.

Triangular matrices are lower ones unless lower=False; the other triangle is not read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.batch_layout import BatchRule, Layouts, Split, elementwise, linear, refuse_mixing
from symgraph.core.params import Attrs, Site
from symgraph.core.ref import Ref, apply
from symgraph.core.registry import Call, Env, Shapes, register
from symgraph.core.shapes import expect, unify
from symgraph.core.types import Array, Shape, Types
from symgraph.ops.batch_dot import batch_dot, batch_dot_batch, batch_dot_flops, batch_dot_shape
from symgraph.ops.elementwise import floats

FLAGS = {"transpose_a": params.boolean(False), "transpose_b": params.boolean(False)}
ALPHA = {"alpha": params.number(1.0)}
AXIS = {"axis": params.only(-2)}


def gemm2(x: Ref, y: Ref, ta: bool = False, tb: bool = False, alpha: float = 1.0) -> Ref:
    return apply("_linalg_gemm2", x, y, transpose_a=ta, transpose_b=tb, alpha=alpha)


def apart(rule: BatchRule) -> BatchRule:
    """Extend a rule to whole matrices, in none of which a batch may lie."""

    def checked(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
        for layout, type_ in zip(ins, in_types, strict=True):
            if isinstance(layout, Split) and layout.axis >= len(type_.shape) - 2:
                refuse_mixing(
                    site, f"works on matrices, along whose axis {layout.axis} lies the batch"
                )
        return rule(site, ins, in_types, outs)

    return checked


def square_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """One shape for input and output: (..., n, n)."""
    shape = unify(site, ins[0], outs[0], "shapes of input and output")
    if shape is None:
        return ins, outs
    if len(shape) < 2 or 0 < shape[-1] != shape[-2] > 0:
        site.fail(f"takes square matrices, not an array of shape {shape}")
    size = shape[-1] or shape[-2]
    return [(*shape[:-2], size, size)], [(*shape[:-2], size, size)]


def cube(types: Types) -> int:
    """Return the number of matrices times the third power of their size."""
    return types[0].size * types[0].shape[-1]


# -- products --------------------------------------------------------------------------------------


def gemm2_grad(c: Call) -> Sequence[Ref]:
    (x, y), g, alpha = c.x, c.gy, c.attrs["alpha"]
    ta, tb = c.attrs["transpose_a"], c.attrs["transpose_b"]
    of_x = gemm2(y, g, tb, True, alpha) if ta else gemm2(g, y, False, not tb, alpha)
    of_y = gemm2(g, x, True, ta, alpha) if tb else gemm2(x, g, not ta, False, alpha)
    return of_x, of_y


register(
    name="_linalg_gemm2",
    inputs=("A", "B"),
    shape=lambda site, ins, outs: batch_dot_shape(site, ins, outs, least=2),
    compute=lambda env, a, x, y: batch_dot(env, a, x, y) * x.dtype.type(a["alpha"]),
    grad=gemm2_grad,
    flops=batch_dot_flops,
    dtype=floats,
    batch=batch_dot_batch,
    params={**FLAGS, **ALPHA, **AXIS},
    aliases=("linalg_gemm2",),
    doc="alpha A B for matrices A (..., n, k) and B (..., k, m), each transposed first if its flag "
    "says so. MXNet _linalg_gemm2.",
)


def gemm_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    out = unify(site, ins[2], outs[0], "shapes of C and the output")
    pair, made = batch_dot_shape(site, ins[:2], [out], least=2)
    return [*pair, made[0]], made


def gemm_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    product = batch_dot_batch(site, ins[:2], in_types[:2], outs)
    return linear(site, [*product, ins[2]], [outs[0], in_types[2]], outs)


def gemm(env: Env, a: Attrs, x: Array, y: Array, z: Array) -> Array:
    made: Array = batch_dot(env, a, x, y) * x.dtype.type(a["alpha"])
    made += x.dtype.type(a["beta"]) * z
    return made


register(
    name="_linalg_gemm",
    inputs=("A", "B", "C"),
    shape=gemm_shape,
    compute=gemm,
    grad=lambda c: (*gemm2_grad(c._replace(x=c.x[:2])), c.gy * c.attrs["beta"]),
    flops=batch_dot_flops,
    dtype=floats,
    batch=gemm_batch,
    params={**FLAGS, **ALPHA, "beta": params.number(1.0), **AXIS},
    aliases=("linalg_gemm",),
    doc="alpha A B + beta C for matrices A (..., n, k) and B (..., k, m), each transposed first if "
    "its flag says so. MXNet _linalg_gemm.",
)


def syrk_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    (data,), (out,) = ins, outs
    if data is None:
        return ins, outs
    if len(data) < 2:
        site.fail(f"takes matrices, not an array of shape {data}")
    size = data[-1 if site.attrs["transpose"] else -2]
    return ins, [unify(site, (*data[:-2], size, size), out, "output shapes")]


def syrk(env: Env, a: Attrs, x: Array) -> Any:
    flags = {"transpose_a": a["transpose"], "transpose_b": not a["transpose"]}
    return batch_dot(env, flags, x, x) * x.dtype.type(a["alpha"])


def syrk_grad(c: Call) -> Sequence[Ref]:
    both = c.gy + apply("SwapAxis", c.gy, dim1=-1, dim2=-2)
    if c.attrs["transpose"]:
        return (gemm2(c.x[0], both, alpha=c.attrs["alpha"]),)
    return (gemm2(both, c.x[0], alpha=c.attrs["alpha"]),)


register(
    name="_linalg_syrk",
    inputs=("A",),
    shape=syrk_shape,
    compute=syrk,
    grad=syrk_grad,
    flops=lambda attrs, ins, outs: 2 * ins[0].size * outs[0].shape[-1],
    dtype=floats,
    batch=apart(elementwise),
    params={"transpose": params.boolean(False), **ALPHA},
    aliases=("linalg_syrk",),
    doc="alpha A A' for matrices A, where A' is the transpose; alpha A' A with transpose=True. "
    "MXNet _linalg_syrk.",
)


# -- triangular matrices ---------------------------------------------------------------------------


def triangle(xp: Any, x: Array, lower: bool) -> Array:
    kept: Array = xp.tril(x) if lower else xp.triu(x)
    return kept


register(
    name="_triangle",
    inputs=("data",),
    shape=square_shape,
    compute=lambda env, a, x: triangle(env.xp, x, a["lower"]),
    grad=lambda c: (apply("_triangle", c.gy, **c.attrs),),
    dtype=floats,
    batch=apart(linear),
    params={"lower": params.boolean(True)},
    doc="The lower (or upper) triangle of matrices, with its diagonal, and zeros in the other.",
)

SIDE = {
    "transpose": params.boolean(False),
    "rightside": params.boolean(False),
    "lower": params.boolean(True),
    **ALPHA,
}


def beside_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    """A: (..., n, n) and B: (..., n, m), or (..., m, n) with rightside; the output is like B."""
    other = unify(site, ins[1], outs[0], "shapes of B and the output")
    ((matrix,), _) = square_shape(site, ins[:1], [None])
    if other is None:
        return [matrix, other], [other]
    if len(other) < 2:
        site.fail(f"takes matrices B, not an array of shape {other}")
    size = other[-1 if site.attrs["rightside"] else -2]
    matrix = expect(site, "A", matrix, (*other[:-2], size, size), f"(B of shape {other})")
    assert matrix is not None
    size = matrix[-1]
    pair = (other[-2], size) if site.attrs["rightside"] else (size, other[-1])
    full = (*matrix[:-2], *pair)
    return [matrix, full], [full]


def beside_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    return outs[0].size * ins[0].shape[-1]


def trmm(env: Env, a: Attrs, x: Array, y: Array) -> Any:
    tri = triangle(env.xp, x, a["lower"])
    tri = tri.swapaxes(-1, -2) if a["transpose"] else tri
    made = env.xp.matmul(y, tri) if a["rightside"] else env.xp.matmul(tri, y)
    return made * x.dtype.type(a["alpha"])


def trmm_grad(c: Call) -> Sequence[Ref]:
    (x, y), g, a = c.x, c.gy, c.attrs
    of_y = apply("_linalg_trmm", x, g, **{**a, "transpose": not a["transpose"]})
    left, right = (y, g) if a["rightside"] else (g, y)
    of_x = gemm2(left, right, a["rightside"], not a["rightside"], a["alpha"])
    if a["transpose"]:
        of_x = apply("SwapAxis", of_x, dim1=-1, dim2=-2)
    return apply("_triangle", of_x, lower=a["lower"]), of_y


register(
    name="_linalg_trmm",
    inputs=("A", "B"),
    shape=beside_shape,
    compute=trmm,
    grad=trmm_grad,
    flops=beside_flops,
    dtype=floats,
    batch=apart(elementwise),
    params=SIDE,
    aliases=("linalg_trmm",),
    doc="alpha A B, or alpha B A with rightside=True, for triangular matrices A (..., n, n), "
    "transposed first with transpose=True. MXNet _linalg_trmm.",
)


def trsm(env: Env, a: Attrs, x: Array, y: Array) -> Any:
    """Solve A X = B; X A = B is A' X' = B'."""
    tri = triangle(env.xp, x, a["lower"])
    if a["transpose"] != a["rightside"]:
        tri = tri.swapaxes(-1, -2)
    if not a["rightside"]:
        return env.xp.linalg.solve(tri, y) * x.dtype.type(a["alpha"])
    found = env.xp.linalg.solve(tri, y.swapaxes(-1, -2))
    return found.swapaxes(-1, -2) * x.dtype.type(a["alpha"])


def trsm_grad(c: Call) -> Sequence[Ref]:
    x, g, a, solved = c.x[0], c.gy, c.attrs, c.y[0]
    turned = {**a, "transpose": not a["transpose"], "alpha": 1.0}
    each = apply("_linalg_trsm", x, g, **turned)
    left, right = (solved, each) if a["rightside"] else (each, solved)
    of_x = gemm2(left, right, a["rightside"], not a["rightside"], -1.0)
    if a["transpose"]:
        of_x = apply("SwapAxis", of_x, dim1=-1, dim2=-2)
    return apply("_triangle", of_x, lower=a["lower"]), each * a["alpha"]


register(
    name="_linalg_trsm",
    inputs=("A", "B"),
    shape=beside_shape,
    compute=trsm,
    grad=trsm_grad,
    flops=beside_flops,
    dtype=floats,
    batch=apart(elementwise),
    params=SIDE,
    reads_on_host=True,
    aliases=("linalg_trsm",),
    doc="The X of A X = alpha B, or of X A = alpha B with rightside=True, for triangular matrices "
    "A (..., n, n), transposed first with transpose=True. MXNet _linalg_trsm.",
)


# -- Cholesky's decomposition ----------------------------------------------------------------------


LOWER = {"lower": params.boolean(True)}


def as_lower(x: Ref, a: Attrs) -> Ref:
    """Return lower triangular matrices as they are, and upper ones transposed; or back."""
    return x if a["lower"] else apply("SwapAxis", x, dim1=-1, dim2=-2)


def potrf(env: Env, a: Attrs, x: Array) -> Any:
    """Decompose matrices, of which numpy reads the lower triangle."""
    if a["lower"]:
        return env.xp.linalg.cholesky(x)
    return env.xp.linalg.cholesky(x.swapaxes(-1, -2)).swapaxes(-1, -2).copy()


def potrf_grad(c: Call) -> Sequence[Ref]:
    """Return a symmetric gradient (Murray, "Differentiation of the Cholesky decomposition")."""
    factor = as_lower(c.y[0], c.attrs)
    inner = apply("_mirror", gemm2(factor, as_lower(c.gy, c.attrs), True))
    right = apply("_linalg_trsm", factor, inner, rightside=True, alpha=0.5)
    return (apply("_linalg_trsm", factor, right, transpose=True),)


def mirror(env: Env, a: Attrs, x: Array) -> Any:
    strict = env.xp.tril(x, -1)
    return env.xp.tril(x) + strict.swapaxes(-1, -2)


register(
    name="_mirror",
    inputs=("data",),
    shape=square_shape,
    compute=mirror,
    grad=lambda c: (
        apply("_triangle", c.gy)
        + apply("_triangle", apply("SwapAxis", c.gy, dim1=-1, dim2=-2))
        - apply("_linalg_makediag", apply("_linalg_extractdiag", c.gy)),
    ),
    dtype=floats,
    batch=apart(linear),
    doc="Symmetric matrices with the lower triangle of the data.",
)

register(
    name="_linalg_potrf",
    inputs=("A",),
    shape=square_shape,
    compute=potrf,
    grad=potrf_grad,
    flops=lambda attrs, ins, outs: cube(ins) // 3,
    dtype=floats,
    batch=apart(elementwise),
    params=LOWER,
    reads_on_host=True,
    aliases=("linalg_potrf",),
    doc="The lower triangular L with L L' = A, for symmetric positive definite matrices A, of "
    "which the lower triangle is read; with lower=False the upper U with U' U = A, and the upper "
    "triangle is read. The gradient is symmetric. MXNet _linalg_potrf.",
)


def potri(env: Env, a: Attrs, x: Array) -> Any:
    inverse = env.xp.linalg.inv(triangle(env.xp, x, a["lower"]))
    pair = inverse.swapaxes(-1, -2), inverse
    return env.xp.matmul(*pair) if a["lower"] else env.xp.matmul(*reversed(pair))


def potri_grad(c: Call) -> Sequence[Ref]:
    both = c.gy + apply("SwapAxis", c.gy, dim1=-1, dim2=-2)
    factor = as_lower(c.x[0], c.attrs)
    inner = apply("_linalg_trsm", factor, gemm2(c.y[0], both), transpose=True, rightside=True)
    return (as_lower(apply("_triangle", inner * -1.0), c.attrs),)


register(
    name="_linalg_potri",
    inputs=("A",),
    shape=square_shape,
    compute=potri,
    grad=potri_grad,
    flops=lambda attrs, ins, outs: 2 * cube(ins),
    dtype=floats,
    batch=apart(elementwise),
    params=LOWER,
    reads_on_host=True,
    aliases=("linalg_potri",),
    doc="The inverse of A A' for lower triangular matrices A, which potrf returns, or of A' A for "
    "upper ones with lower=False. MXNet _linalg_potri.",
)


# -- diagonals -------------------------------------------------------------------------------------

OFFSET = {"offset": params.integer(0)}


def extract_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    (data,), _ = square_shape(site, ins, [None])
    if data is None:
        return ins, outs
    offset = abs(site.attrs["offset"])
    if 0 < data[-1] <= offset:
        site.fail(f"matrices of shape {data} have no diagonal {site.attrs['offset']}")
    made = (*data[:-2], data[-1] and data[-1] - offset)
    return [data], [unify(site, made, outs[0], "output shapes")]


def make_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data = ins[0]
    if data is None:
        return ins, outs
    size = data[-1] and data[-1] + abs(site.attrs["offset"])
    return ins, [unify(site, (*data[:-1], size, size), outs[0], "output shapes")]


def diagonal(xp: Any, size: int, offset: int) -> tuple[Any, ...]:
    """Return the index of a diagonal of matrices of this size."""
    at = xp.arange(size - abs(offset))
    return (..., at + max(0, -offset), at + max(0, offset))


def makediag(env: Env, a: Attrs, x: Array) -> Array:
    size = x.shape[-1] + abs(a["offset"])
    made: Array = env.xp.zeros((*x.shape[:-1], size, size), x.dtype)
    made[diagonal(env.xp, size, a["offset"])] = x
    return made


def last_apart(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    rank = len(in_types[0].shape)
    if isinstance(ins[0], Split) and ins[0].axis == rank - 1:
        refuse_mixing(site, "makes matrices of diagonals along which the batch lies")
    return [ins[0]]


register(
    name="_linalg_extractdiag",
    inputs=("A",),
    shape=extract_shape,
    compute=lambda env, a, x: x[diagonal(env.xp, x.shape[-1], a["offset"])],
    grad=lambda c: (apply("_linalg_makediag", c.gy, **c.attrs),),
    dtype=floats,
    batch=apart(lambda site, ins, in_types, outs: [ins[0]]),
    params=OFFSET,
    aliases=("linalg_extractdiag",),
    doc="Diagonals of square matrices: the main one, or the one `offset` places above (below if "
    "negative). MXNet _linalg_extractdiag.",
)

register(
    name="_linalg_makediag",
    inputs=("A",),
    shape=make_shape,
    compute=makediag,
    grad=lambda c: (apply("_linalg_extractdiag", c.gy, **c.attrs),),
    dtype=floats,
    batch=last_apart,
    params=OFFSET,
    aliases=("linalg_makediag",),
    doc="Square matrices with the last axis on the diagonal `offset` places above the main one, "
    "and zeros elsewhere. MXNet _linalg_makediag.",
)


def sum_shape(site: Site, ins: Shapes, outs: Shapes) -> tuple[Shapes, Shapes]:
    data, _ = square_shape(site, ins, [None])
    if data[0] is None:
        return data, outs
    return data, [unify(site, data[0][:-2] or (1,), outs[0], "output shapes")]


def sum_batch(site: Site, ins: Layouts, in_types: Types, outs: Types) -> Layouts:
    elementwise(site, ins, in_types, in_types)  # no sums over samples
    return [ins[0]]


def sumlogdiag(env: Env, a: Attrs, x: Array) -> Any:
    logs = env.xp.log(x[diagonal(env.xp, x.shape[-1], 0)])
    return logs.sum(-1).reshape(x.shape[:-2] or (1,))


def sumlogdiag_grad(c: Call) -> Sequence[Ref]:
    shape: Shape = c.x[0].shape
    each = apply("Reshape", c.gy, shape=(*shape[:-2], 1))
    inverse = apply("reciprocal", apply("_linalg_extractdiag", c.x[0]))
    return (apply("_linalg_makediag", apply("broadcast_mul", inverse, each)),)


register(
    name="_linalg_sumlogdiag",
    inputs=("A",),
    shape=sum_shape,
    compute=sumlogdiag,
    grad=sumlogdiag_grad,
    flops=lambda attrs, ins, outs: 10 * math.isqrt(ins[0].size),
    dtype=floats,
    batch=apart(sum_batch),
    aliases=("linalg_sumlogdiag",),
    doc="Sums of the logarithms of the main diagonals of square matrices. MXNet "
    "_linalg_sumlogdiag.",
)
