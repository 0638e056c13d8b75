"""Converters of products: MatMul, Gemm, Einsum and what is computed by matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from symgraph.interchange.onnx.converters.movement import with_ones
from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.registry import converts
from symgraph.interchange.values import Known, Traced, spread


def matrix_weight(node: OnnxNode, index: int, transposed: bool) -> Traced | None:
    """Return a constant matrix as the weight of a FullyConnected, which has a row per output.

    Args:
        node: The node.
        index: The input.
        transposed: Whether the file has it like that.
    """
    value = node.value(index)
    if not isinstance(value, Known) or len(value.shape) != 2 or not value.fixed:
        return None
    if transposed:
        return node.network.constant(value, learned=True)
    return node.network.turned_matrix(value)


def merged(x: Traced, axes: int) -> Traced:
    """Return a value with its first axes merged into one."""
    dims = [(math.prod(d[:axes]), *d[axes:]) for d in x.dims]
    return x.reshaped((dims[0], dims[1]))


def matmul(node: OnnxNode, x: Traced, y: Traced) -> Traced:
    """Multiply as numpy's matmul does."""
    node.require(x.rank > 0 and y.rank > 0, "multiplies a scalar")
    vector_x, vector_y = x.rank == 1, y.rank == 1
    if vector_x and vector_y:
        product = node.floats(x) * y
        return product.call("sum", axisless=True)
    x = with_ones(x, [0]) if vector_x else x
    y = with_ones(y, [1]) if vector_y else y
    made = _matrices(node, x, y)
    if vector_x:
        dims = [(*d[:-2], d[-1]) for d in made.dims]
        made = made.reshaped((dims[0], dims[1]))
    if vector_y:
        dims = [d[:-1] for d in made.dims]
        made = made.reshaped((dims[0], dims[1]))
    return made


def _matrices(node: OnnxNode, x: Traced, y: Traced) -> Traced:
    """Multiply values of two axes or more."""
    if y.rank == 2:
        return x.call("dot", y)
    rank = max(x.rank, y.rank)
    values = []
    lead = tuple(np.broadcast_shapes(x.dims[i][:-2], y.dims[i][:-2]) for i in range(2))
    for value in (x, y):
        value = with_ones(value, range(rank - value.rank))
        dims = [(*lead[i], *value.dims[i][-2:]) for i in range(2)]
        values.append(spread(value, (dims[0], dims[1])))
    return values[0].call("batch_dot", values[1])


@converts("MatMul")
def matrix_product(node: OnnxNode) -> Traced:
    left = node.value(0)
    if isinstance(left, Traced) and left.rank >= 2:
        weight = matrix_weight(node, 1, False)
        if weight is not None:
            hidden = weight.shape[0]
            node.require(left.shape[-1] == weight.shape[1], f"{left.shape} times {weight.shape}")
            return left.call(
                "FullyConnected", weight, num_hidden=hidden, no_bias=True, flatten=False
            )
    return matmul(node, node.tensor(0, learned=True), node.tensor(1, learned=True))


@converts("Gemm")
def gemm(node: OnnxNode) -> Traced:
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    x = node.x.transposed([1, 0]) if node.attr("transA", 0) else node.x
    weight = matrix_weight(node, 1, bool(node.attr("transB", 0)))
    bias = node.optional(2, learned=True)
    if weight is None:  # its columns may be samples, which FullyConnected cannot count
        y = node.tensor(1)
        made = x.call("dot", y.transposed([1, 0]) if node.attr("transB", 0) else y)
        plain = False
    else:
        units = weight.shape[0]
        plain = bias is not None and bias.shape == (units,) and alpha == beta == 1.0
        inputs = [weight, bias] if plain and bias is not None else [weight]
        made = x.call("FullyConnected", *inputs, num_hidden=units, no_bias=not plain, flatten=False)
    made = made if alpha == 1.0 else made * alpha
    if bias is None or plain or beta == 0.0:
        return made
    return made + (bias if beta == 1.0 else bias * beta)


# -- Einsum ----------------------------------------------------------------------------------------


@converts("Einsum")
def einsum(node: OnnxNode) -> Traced:
    equation = node.attr("equation", "").replace(" ", "")
    values = [node.tensor(i) for i in range(len(node.inputs))]
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    node.require(len(terms) == len(values), f"{equation!r} for {len(values)} inputs")
    terms, right = spelt_out(terms, right if arrow else None, [v.rank for v in values])
    current, letters = _diagonals(node, values[0], terms[0])
    for i, (value, term) in enumerate(zip(values[1:], terms[1:], strict=True), 2):
        later = "".join(terms[i:]) + right
        value, term = _diagonals(node, value, term)
        current, letters = _contracted(node, current, letters, value, term, later)
    return _arranged(current, letters, right)


def spelt_out(
    terms: Sequence[str], right: str | None, ranks: Sequence[int]
) -> tuple[list[str], str]:
    """Return the terms and the result of an equation without "..." and with a result."""
    counts = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(terms, ranks, strict=True)
    ]
    dots = "".join(chr(0x3B1 + i) for i in range(max([*counts, 0])))
    full = [t.replace("...", dots[len(dots) - n :]) for t, n in zip(terms, counts, strict=True)]
    if right is None:
        joined = "".join(full)
        right = dots + "".join(
            sorted(c for c in set(joined) if joined.count(c) == 1 and c not in dots)
        )
    return full, right.replace("...", dots)


def _diagonals(node: OnnxNode, x: Traced, term: str) -> tuple[Traced, str]:
    """Keep the diagonal of axes that have one letter."""
    node.require(len(term) == x.rank, f"the term {term!r} for {x.rank} dimensions")
    while len(set(term)) < len(term):
        letter = next(c for c in term if term.count(c) > 1)
        first, second = [i for i, c in enumerate(term) if c == letter][:2]
        size = x.shape[first]
        node.require(size == x.shape[second] and size > 0, f"a diagonal of {x.shape}")
        rest = [i for i in range(x.rank) if i not in (first, second)]
        moved = x.transposed([*rest, first, second])
        dims = [(*d[:-2], size * size) for d in moved.dims]
        flat = moved.reshaped((dims[0], dims[1]))
        x = flat.call(
            "slice",
            begin=(*[None] * len(rest), 0),
            end=(*[None] * len(rest), size * size),
            step=(*[None] * len(rest), size + 1),
        )
        term = "".join(term[i] for i in rest) + letter
    return x, term


def _contracted(
    node: OnnxNode, x: Traced, xs: str, y: Traced, ys: str, later: str
) -> tuple[Traced, str]:
    """Multiply two values and sum over the letters that nothing reads later."""
    x, xs = _summed(x, xs, ys + later)
    y, ys = _summed(y, ys, xs + later)
    shared = [c for c in xs if c in ys and c in later]
    inner = [c for c in xs if c in ys and c not in later]
    left = [c for c in xs if c not in ys]
    right = [c for c in ys if c not in xs]
    sizes: dict[str, tuple[int, int]] = {}
    for value, term in ((x, xs), (y, ys)):
        for i, c in enumerate(term):
            sizes[c] = max(sizes.get(c, (1, 1)), (value.dims[0][i], value.dims[1][i]))

    def total(letters: list[str], side: int) -> int:
        return math.prod(sizes[c][side] for c in letters)

    def matrix(value: Traced, term: str, order: Sequence[list[str]]) -> Traced:
        moved = value.transposed([term.index(c) for group in order for c in group])
        whole = [tuple(sizes[c][i] for group in order for c in group) for i in range(2)]
        moved = spread(moved, (whole[0], whole[1]))
        dims = [[total(group, i) for group in order] for i in range(2)]
        return moved.reshaped((dims[0], dims[1]))

    one = matrix(x, xs, [shared, left, inner])
    other = matrix(y, ys, [shared, inner, right])
    made = one.call("batch_dot", other, axisless=False)
    letters = [*shared, *left, *right]
    dims = [[sizes[c][i] for c in letters] for i in range(2)]
    return made.reshaped((dims[0], dims[1])), "".join(letters)


def _summed(x: Traced, term: str, needed: str) -> tuple[Traced, str]:
    """Sum over the letters that nothing else reads."""
    gone = tuple(i for i, c in enumerate(term) if c not in needed)
    if not gone:
        return x, term
    made = x.call("sum", axis=gone, axisless=len(gone) == x.rank)
    return made, "".join(c for c in term if c in needed)


def _arranged(x: Traced, term: str, right: str) -> Traced:
    x, term = _summed(x, term, right)
    return x.transposed([term.index(c) for c in right])
