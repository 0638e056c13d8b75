"""Element-wise formulas: one text per operator, from which every back end derives its computation.

    Formula("elu", "where(x > 0, x, slope * expm1(minimum(x, 0)))")

A text is a Python expression of the arrays x, y and z, of the operator's parameters by name, and of
functions that have numpy's names, besides erf, sigmoid and softrelu. numpy and CuPy evaluate it as
it stands; runtime/backends compiles it into loops and writes it in CUDA.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from symgraph.core.params import Attrs
from symgraph.core.registry import Env
from symgraph.core.types import Array

ARRAYS = "xyz"


def sigmoid(xp: Any, x: Array) -> Any:
    """Compute 1 / (1 + exp(-x)); where exp overflows, the 0 that follows is right."""
    y = xp.negative(x)
    with np.errstate(over="ignore"):
        xp.exp(y, out=y)
    y += 1
    return xp.reciprocal(y, out=y)


def special(x: Array, name: str) -> Any:
    """Return a function of scipy.special or CuPy's; the module is imported at the first call."""
    module = "scipy.special" if isinstance(x, np.ndarray) else "cupyx.scipy.special"
    return getattr(importlib.import_module(module), name)


def where(xp: Any, condition: Any, yes: Any, no: Any) -> Any:
    """Choose by a condition that may be a number, which CuPy's function does not take."""
    if isinstance(condition, bool | np.bool_):
        return yes if condition else no
    return xp.where(condition, yes, no)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {  # instead of array modules'
    "sigmoid": sigmoid,
    "softrelu": lambda xp, x: xp.logaddexp(x, 0),
    "erf": lambda xp, x: special(x, "erf")(x),
    "where": where,
}


class Formula:
    """A function of the elements of one to three arrays, and of numbers.

    Args:
        name: A name that no other formula has.
        text: The expression.
        derived: Name of a number -> how it is computed from the operator's parameters, if it is
            not one of them.
    """

    def __init__(self, name: str, text: str, **derived: Callable[[Attrs], float]) -> None:
        self.name, self.text, self.derived = name, text, derived
        self.tree = ast.parse(text, mode="eval").body
        names = [n.id for n in _by_place(self.tree, ast.Name)]
        calls = [n.func.id for n in _by_place(self.tree, ast.Call) if isinstance(n.func, ast.Name)]
        #: The names of the functions that it calls.
        self.functions = tuple(dict.fromkeys(calls))
        #: Its arrays, in the order of the operator's inputs.
        self.arrays = tuple(a for a in ARRAYS if a in names)
        #: Its numbers, in the order of the text.
        self.numbers = tuple(dict.fromkeys(n for n in names if n not in (*ARRAYS, *calls)))
        self._code = compile(text, f"<formula {name}>", "eval")

    def values(self, attrs: Attrs) -> list[float]:
        """Return the values of `numbers` for an operator's parameters."""
        return [self.derived[n](attrs) if n in self.derived else attrs[n] for n in self.numbers]

    def __call__(self, xp: Any, arrays: tuple[Array, ...], numbers: Mapping[str, Any]) -> Any:
        """Evaluate the text with the functions of numpy or CuPy."""
        functions = {
            name: partial(FUNCTIONS[name], xp) if name in FUNCTIONS else getattr(xp, name)
            for name in self.functions
        }
        values = {**dict(zip(self.arrays, arrays, strict=True)), **numbers}
        return eval(self._code, functions, values)

    def with_number(self, name: str, array: str, number: str) -> Formula:
        """Return the formula of one array, named x, and a number in place of `array`."""
        renamed = {a: number if a == array else "x" for a in self.arrays}
        tree = ast.parse(self.text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = renamed.get(node.id, node.id)
        return Formula(name, ast.unparse(tree))

    def compute(self, env: Env, attrs: Attrs, *arrays: Array) -> Any:
        """Compute an operator's output, which has the dtype of its first input."""
        dtype = arrays[0].dtype
        numbers = dict(zip(self.numbers, map(dtype.type, self.values(attrs)), strict=True))
        return self(env.xp, arrays, numbers).astype(dtype, copy=False)


def _by_place(tree: ast.AST, kind: type[Any]) -> list[Any]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, kind)]
    return sorted(nodes, key=lambda node: node.col_offset)


#: Operator -> its formula, for operators that have one formula for all parameters.
FORMULAS: dict[str, Formula] = {}
