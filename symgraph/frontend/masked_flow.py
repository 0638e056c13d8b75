"""Control flow by masks: `sym.contrib.while_loop` and `sym.contrib.cond`.

A planned graph has the same nodes in every step, so a loop runs all its iterations, and a condition
both its branches; a mask chooses between the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symgraph.core.errors import GraphError
from symgraph.frontend.control_flow import Nested, flattened, foreach, nested
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol

NEEDED = (
    "not an int of 1 or more, but a planned graph needs to know how many iterations to hold: see "
    "docs/from_mxnet.md, 'What exists'"
)


def while_loop(
    cond: Callable[..., Symbol],
    func: Callable[..., tuple[Nested, Nested]],
    loop_vars: Nested,
    max_iterations: int | None = None,
    name: str = "while_loop",
) -> tuple[Nested, Nested]:
    """Repeat a network while a condition holds, at most so often (`mx.sym.contrib.while_loop`).

    The graph has max_iterations copies of the network, which all run. In those behind the last
    iteration, the variables keep their values, and outputs and gradients are 0, unless a gradient
    is infinite at these values.

    Args:
        cond: a function of the loop's variables that returns a symbol of one element; it is called
            once.
        func: a function of the loop's variables that returns (outputs, new variables); it is
            called once.
        loop_vars: the variables before the first iteration: a symbol, or nested lists.
        max_iterations: the number of copies.
        name: ignored, as by MXNet, for the node's name.

    Returns:
        The outputs of all iterations, stacked along a first axis of length max_iterations (0 where
        there was none, MXNet: anything), and the last variables.

    Raises:
        GraphError: without max_iterations, or if new variables are not nested as the old ones.
    """
    if not isinstance(max_iterations, int) or max_iterations < 1:
        raise GraphError(f"while_loop: max_iterations={max_iterations!r} is {NEEDED}")
    _, layout = flattened(loop_vars, "while_loop: loop_vars")

    def body(_: Symbol, states: Nested) -> tuple[Nested, Nested]:
        running, before = states
        given = before if isinstance(before, list) else [before]
        running = running * _truth(cond(*given), "while_loop: the condition")
        made, after = func(*given)
        outputs, form = flattened([] if made is None else made, "while_loop: outputs")
        shown = [_op("where", running, out, _op("zeros_like", out)) for out in outputs]
        new, after_layout = flattened(after, "while_loop: new variables")
        if after_layout != layout:
            raise GraphError(f"while_loop: new variables {after!r} are not nested as {loop_vars!r}")
        pairs = zip(new, flattened(before, "")[0], strict=True)
        kept = [_op("where", running, *pair) for pair in pairs]
        return nested(shown, form), [running, nested(kept, layout)]

    steps = _op("_zeros", shape=(max_iterations,))
    outputs, (_, ends) = foreach(body, steps, [_op("_ones", shape=(1,)), loop_vars])
    return outputs, ends


def cond(
    pred: Symbol,
    then_func: Callable[[], Nested],
    else_func: Callable[[], Nested],
    name: str = "cond",
) -> Nested:
    """Choose between two networks (`mx.sym.contrib.cond`).

    Both run; the gradient of what is not chosen is 0, unless it is infinite there.

    Args:
        pred: a symbol of one element.
        then_func: a function without arguments that returns what holds if pred is not 0: a
            symbol, or nested lists.
        else_func: one that returns what holds if it is 0, nested alike and of the same shapes.
        name: ignored.

    Raises:
        GraphError: if both are not nested alike.
    """
    truth = _truth(pred, "cond: pred")
    yes, no = then_func(), else_func()
    (chosen, layout), (others, other) = (flattened(branch, "cond: results") for branch in (yes, no))
    if layout != other:
        raise GraphError(f"cond: then_func returns {yes!r}, else_func {no!r}: nest both alike")
    pairs = zip(chosen, others, strict=True)
    return nested([_op("where", truth, *pair) for pair in pairs], layout)


def _truth(symbol: Symbol, what: str) -> Symbol:
    """Return 1 or 0, of shape (1,), for a symbol of one element."""
    if not isinstance(symbol, Symbol):
        raise TypeError(f"{what} is a symbol of one element, not {symbol!r}")
    return _op("Cast", _op("Reshape", symbol, shape=(1,)) != 0, dtype="float32")


def _op(name: str, *inputs: Symbol, **params: Any) -> Symbol:
    return Symbol(call(name, name, inputs, params))
