"""Cells with the options of ONNX's recurrent operators: activations, clip, peepholes, GRU's forms.

A gate is a node for each operation here; cells without such options have one node for all gates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from symgraph.core import params
from symgraph.core.params import Param
from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.rnn.cells import GRUCell, LSTMCell, RNNCell, RNNParams, States, with_batch_of

Gate = Callable[[Symbol], Symbol]

# The activations: the defaults of the numbers that each takes.
ACTIVATIONS: dict[str, tuple[float, ...]] = {
    "relu": (),
    "tanh": (),
    "sigmoid": (),
    "softsign": (),
    "softplus": (),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01,),
    "thresholdedrelu": (1.0,),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0,),
}


def _activated(name: str, x: Symbol, a: float = 0.0, b: float = 0.0) -> Symbol:
    """Apply an activation with its numbers."""
    match name:
        case "affine":
            return x * a + b
        case "leakyrelu" | "elu":
            kind = "elu" if name == "elu" else "leaky"
            return sym.LeakyReLU(x, act_type=kind, slope=a)
        case "thresholdedrelu":
            return x * (x > a)
        case "scaledtanh":
            return sym.tanh(x * b) * a
        case "hardsigmoid":
            return sym.hard_sigmoid(x, alpha=a, beta=b)
        case "softplus":
            return sym.Activation(x, act_type="softrelu")
        case _:
            return sym.Activation(x, act_type=name)


_CALL = re.compile(r"(\w+)(?:\(([^()]*)\))?")


def _split_call(text: str) -> tuple[str, tuple[float, ...]]:
    """Return the name and numbers of an activation; ValueError for one that there is not."""
    match = _CALL.fullmatch(text)
    if match is None or match[1] not in ACTIVATIONS:
        raise ValueError
    defaults = ACTIVATIONS[match[1]]
    given = tuple(float(number) for number in match[2].split(",")) if match[2] else ()
    if len(given) > len(defaults):
        raise ValueError
    return match[1], given + defaults[len(given) :]


def _parse(raw: Any) -> tuple[str, ...]:
    texts = params.literal(raw)
    texts = (texts,) if isinstance(texts, str) else tuple(texts)
    for text in texts:
        _split_call(text)
    return texts


activations = Param(_parse, (), f"tuple of activations ({', '.join(ACTIVATIONS)})")


def gate(text: str, clip: float | None) -> Gate:
    """Return an activation, such as "tanh" or "affine(0.5, 1)", of a clipped sum."""
    name, numbers = _split_call(text)

    def apply(x: Symbol) -> Symbol:
        return _activated(
            name, x if clip is None else sym.clip(x, a_min=-clip, a_max=clip), *numbers
        )

    return apply


class RNNVariant(RNNCell):
    """A plain cell with any activation."""

    def __init__(self, num_hidden: int, prefix: str, given: RNNParams, gates: Sequence[Gate]):
        (f,) = gates
        super().__init__(num_hidden, lambda x, name: f(x), prefix, given)


class ProjectedLSTM(LSTMCell):
    """An LSTM cell whose output, and state h, is the usual one times a weight (projection, H)."""

    def __init__(self, num_hidden: int, prefix: str, given: RNNParams, projection: int) -> None:
        super().__init__(num_hidden, prefix, given)
        self._projection = projection
        self._projector = self._params.get("h2r_weight")

    @property
    def state_info(self) -> list[dict[str, Any]]:
        h, c = super().state_info
        return [{**h, "shape": (0, self._projection)}, c]

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        inner, (_, next_c) = super()._step(name, inputs, states)
        output = sym.FullyConnected(
            inner, self._projector, num_hidden=self._projection, no_bias=True, name=f"{name}h2r"
        )
        return output, [output, next_c]


class LSTMVariant(LSTMCell):
    """An LSTM cell with activations of the gates, of the new state and of the output.

    Args:
        num_hidden: units.
        prefix: prefix of the names of nodes and parameters.
        given: the parameters.
        gates: the activations: of gates, of the candidate, and of the state in the output.
        peephole: vector (3H,) of weights from the state to the gates i, f, o; None: there are none.
        input_forget: whether the forget gate is 1 - the input gate.
    """

    def __init__(
        self,
        num_hidden: int,
        prefix: str,
        given: RNNParams,
        gates: Sequence[Gate],
        peephole: Symbol | None = None,
        input_forget: bool = False,
    ) -> None:
        super().__init__(num_hidden, prefix, given)
        self._activations = gates
        self._input_forget = input_forget
        self._peepholes: list[Symbol | None] = [None] * 3
        if peephole is not None:
            rows = sym.Reshape(peephole, shape=(1, 3 * num_hidden))
            self._peepholes = [*sym.SliceChannel(rows, num_outputs=3, axis=1)]

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        h, c = (with_batch_of(state, inputs) for state in states)
        total = self._dense("i2h", name, inputs) + self._dense("h2h", name, h)
        i, f, new, o = sym.SliceChannel(total, num_outputs=4, axis=1)
        of_gate, of_new, of_state = self._activations
        of_i, of_f, of_o = self._peepholes
        i = of_gate(_peep(i, c, of_i))
        f = 1.0 - i if self._input_forget else of_gate(_peep(f, c, of_f))
        next_c = f * c + i * of_new(new)
        next_h = sym.elemwise_mul(
            of_gate(_peep(o, next_c, of_o)), of_state(next_c), name=f"{name}out"
        )
        return next_h, [next_h, next_c]


def _peep(total: Symbol, state: Symbol, weight: Symbol | None) -> Symbol:
    return total if weight is None else total + sym.broadcast_mul(state, weight)


class GRUVariant(GRUCell):
    """A GRU cell with any activations, in either form.

    Args:
        num_hidden: units.
        prefix: prefix of the names of nodes and parameters.
        given: the parameters.
        gates: the activations: of gates, and of the new state.
        reset_after: whether the reset gate multiplies the state's product with the weight, as in
            cuDNN; otherwise it multiplies the state.
    """

    def __init__(
        self,
        num_hidden: int,
        prefix: str,
        given: RNNParams,
        gates: Sequence[Gate],
        reset_after: bool,
    ) -> None:
        super().__init__(num_hidden, prefix, given)
        self._activations = gates
        self._reset_after = reset_after
        if not reset_after:
            kept, rows = self._weights["h2h"], (2 * num_hidden, num_hidden)
            self._h2h = list(zip(*(sym._cut(p, sizes=rows) for p in kept), rows, strict=True))

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        h = with_batch_of(states[0], inputs)
        r, z, new = sym.SliceChannel(self._dense("i2h", name, inputs), num_outputs=3, axis=1)
        of_gate, of_new = self._activations
        if self._reset_after:
            h_r, h_z, h_new = sym.SliceChannel(self._dense("h2h", name, h), num_outputs=3, axis=1)
            r, z = of_gate(r + h_r), of_gate(z + h_z)
            new = of_new(new + r * h_new)
        else:
            (*gates, count), (*rest, hidden) = self._h2h
            both = sym.FullyConnected(h, *gates, num_hidden=count, name=f"{name}h2h_gates")
            h_r, h_z = sym.SliceChannel(both, num_outputs=2, axis=1)
            r, z = of_gate(r + h_r), of_gate(z + h_z)
            inner = sym.FullyConnected(r * h, *rest, num_hidden=hidden, name=f"{name}h2h_new")
            new = of_new(new + inner)
        output = sym.elemwise_add((1.0 - z) * new, z * h, name=f"{name}out")
        return output, [output]
