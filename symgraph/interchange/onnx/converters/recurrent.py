"""Converters of LSTM, GRU and RNN: one node of the symbol, unrolled when it becomes a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from symgraph.interchange.onnx.node import OnnxNode
from symgraph.interchange.onnx.registry import Results, converts
from symgraph.interchange.values import Known, Traced, Value, spread

# Mode, the order of ONNX's gates in which cells have theirs, activations of a direction.
MODES: dict[str, tuple[str, Sequence[int], Sequence[str]]] = {
    "LSTM": ("lstm", (0, 2, 3, 1), ("Sigmoid", "Tanh", "Tanh")),
    "GRU": ("gru", (1, 0, 2), ("Sigmoid", "Tanh")),
    "RNN": ("rnn_tanh", (0,), ("Tanh",)),
}
NUMBERS = {  # how many numbers an activation takes
    "affine": 2,
    "scaledtanh": 2,
    "hardsigmoid": 2,
    "leakyrelu": 1,
    "thresholdedrelu": 1,
    "elu": 1,
}
PEEPHOLES = (0, 2, 1)  # ONNX's order is i, o, f


class Part:
    """What a node has for its directions: weights, biases or peepholes."""

    def __init__(self, node: OnnxNode, index: int) -> None:
        self.node, self.value = node, node.value(index)
        node.require(self.value is not None, f"its input {index} is missing")

    def cut(self, direction: int, order: Sequence[int], label: str, first: int = 0) -> Traced:
        """Return the rows of one direction, gate by gate in another order.

        Args:
            direction: The direction's place.
            order: The gates in their new order.
            label: What the name of a parameter ends with.
            first: The first gate.
        """
        value = self.value
        assert value is not None
        rows = value.shape[1]
        gates = len(order) * (2 if label.endswith("bias") else 1)
        size = rows // gates
        self.node.require(rows > 0 and rows % gates == 0, f"has {rows} rows for {gates} gates")
        if isinstance(value, Known):
            array = value.arrays[0][direction]
            parts = [array[(first + g) * size : (first + g + 1) * size] for g in order]
            made = np.concatenate(parts)
            name = f"{value.name}_{label}"
            return self.node.network.constant(Known((made, made), name, True), learned=True)
        one = value.sliced(0, direction, direction + 1)
        one = one.reshaped((value.dims[0][1:], value.dims[1][1:]))
        cuts = [one.sliced(0, (first + g) * size, (first + g + 1) * size) for g in order]
        return cuts[0] if len(cuts) == 1 else cuts[0].call("Concat", *cuts[1:], dim=0)


def parameters(node: OnnxNode, letters: str, order: Sequence[int]) -> Iterator[Traced]:
    """Yield the parameters of one direction after another, in the order of `_recurrent`."""
    weight, hidden = Part(node, 1), Part(node, 2)
    bias = None if node.value(3) is None else Part(node, 3)
    peepholes = Part(node, 7) if node.op == "LSTM" and node.value(7) is not None else None
    for at, letter in enumerate(letters):
        yield weight.cut(at, order, f"{letter}0_i2h_weight")
        yield hidden.cut(at, order, f"{letter}0_h2h_weight")
        if bias is not None:
            yield bias.cut(at, order, f"{letter}0_i2h_bias")
            yield bias.cut(at, order, f"{letter}0_h2h_bias", len(order))
        if peepholes is not None:
            yield peepholes.cut(at, PEEPHOLES, f"{letter}0_peephole")


def activations(node: OnnxNode, letters: str, usual: Sequence[str]) -> tuple[str, ...]:
    """Return the activations with their numbers; () for the usual ones."""
    names = node.attr("activations") or list(usual) * len(letters)
    alphas, betas = iter(node.attr("activation_alpha", [])), iter(node.attr("activation_beta", []))
    texts = []
    for name in names:
        word = name.lower()
        given: list[Any] = [next(alphas, None)] if NUMBERS.get(word, 0) >= 1 else []
        given += [next(betas, None)] if NUMBERS.get(word, 0) == 2 else []
        shown = [repr(float(n)) for n in given if n is not None]
        texts.append(f"{word}({', '.join(shown)})" if shown else word)
    plain = [name.lower() for name in usual] * len(letters)
    return () if texts == plain else tuple(texts)


def initial(node: OnnxNode, index: int, wanted: tuple[Any, Any], batched: bool) -> Traced | None:
    """Return an initial state (directions, batch, units); None for zeros."""
    value = node.value(index)
    if isinstance(value, Known) and not value.arrays[0].any():
        return None
    state = node.optional(index)
    if state is None:
        return None
    if batched:
        state = state.transposed([1, 0, 2])
    return spread(state, wanted)


@converts(*MODES)
def recurrent(node: OnnxNode) -> Results:
    mode, order, usual = MODES[node.op]
    direction = node.attr("direction", "forward")
    letters = {"forward": "l", "reverse": "r", "bidirectional": "lr"}.get(direction, "")
    node.require(bool(letters), f"has direction={direction!r}")
    batched = bool(node.attr("layout", 0))
    x = node.x.transposed([1, 0, 2]) if batched else node.x
    units = node.attr("hidden_size") or node.tensor(2).shape[-1]
    steps = x.shape[0]
    node.require(steps > 0, "runs over time steps whose number is not fixed")
    inputs = list(parameters(node, letters, order))
    dims = tuple((len(letters), d[1], units) for d in x.dims)
    states = [
        initial(node, i, (dims[0], dims[1]), batched) for i in ((5, 6) if mode == "lstm" else (5,))
    ]
    if any(s is not None for s in states):
        empty = next(s for s in states if s is not None)
        inputs += [empty.call("zeros_like") if s is None else s for s in states]
    lengths = node.value(4)
    if isinstance(lengths, Known) and lengths.fixed and (lengths.arrays[0] == steps).all():
        lengths = None
    if lengths is not None:
        inputs.append(node.tensor(4))
    wanted = [*node.outputs, False, False, False]
    made = node.network.call(
        "_recurrent",
        x,
        *inputs,
        mode=mode,
        state_size=units,
        direction=direction,
        no_bias=node.value(3) is None,
        use_state=any(s is not None for s in states),
        use_sequence_length=lengths is not None,
        state_outputs=any(wanted[1:]),
        activations=activations(node, letters, usual),
        clip=node.attr("clip"),
        peepholes=node.op == "LSTM" and node.value(7) is not None,
        input_forget=bool(node.attr("input_forget", 0)),
        reset_after=node.op != "GRU" or bool(node.attr("linear_before_reset", 0)),
    )
    split = [(d[0], d[1], len(letters), units) for d in made[0].dims]
    results: list[Value | None] = [None]
    if wanted[0]:
        whole = made[0].reshaped((split[0], split[1]))
        results = [whole.transposed([1, 0, 2, 3] if batched else [0, 2, 1, 3])]
    return results + [s.transposed([1, 0, 2]) if batched else s for s in made[1:]]
