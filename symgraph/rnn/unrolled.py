"""Unrolling of a whole recurrent network, with layers, directions and lengths, into cells.

Without lengths, steps stay apart between layers, so each can start as soon as its inputs are there.
With them a backward cell reads the whole sequence at once, to turn round each sample's own steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from symgraph.core.types import Shape
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.symbol import Symbol
from symgraph.rnn.cells import (
    BaseRNNCell,
    GRUCell,
    LSTMCell,
    RNNCell,
    RNNParams,
    States,
    Steps,
    merge_steps,
    split_steps,
)
from symgraph.rnn.stacks import DropoutCell
from symgraph.rnn.variants import GRUVariant, LSTMVariant, ProjectedLSTM, RNNVariant, gate

TNC = "TNC"
CELLS: dict[str, type[RNNCell | LSTMCell | GRUCell]] = {
    "rnn_relu": RNNCell,
    "rnn_tanh": RNNCell,
    "lstm": LSTMCell,
    "gru": GRUCell,
}
ACTIVATIONS_OF = {
    "rnn_relu": ("relu",),
    "rnn_tanh": ("tanh",),
    "lstm": ("sigmoid", "tanh", "tanh"),
    "gru": ("sigmoid", "tanh"),
}


@dataclass(frozen=True)
class Form:
    """What a recurrent network looks like; `_recurrent` describes the options."""

    #: rnn_relu, rnn_tanh, lstm or gru.
    mode: str
    #: Units per layer and direction.
    units: int
    #: The number of layers.
    layers: int
    #: A letter per direction: l is forward, r is backward.
    directions: str
    #: The probability of dropout between layers.
    dropout: float = 0.0
    #: The activations of one cell after another of a layer; empty for the usual ones.
    activations: tuple[str, ...] = ()
    #: The bound on what activations of gates are applied to.
    clip: float | None = None
    #: Whether an LSTM's gates see its state.
    peepholes: bool = False
    #: Whether an LSTM's forget gate is 1 - its input gate.
    input_forget: bool = False
    #: Whether a GRU's reset gate multiplies the state's product with the weight, or the state.
    reset_after: bool = True
    #: The units that an LSTM's output is projected to; None: it is not.
    projection: int | None = None

    @property
    def width(self) -> int:
        """The features of the output of each layer and direction."""
        return self.units if self.projection is None else self.projection

    @property
    def rows(self) -> int:
        """The rows of each weight."""
        return len(CELLS[self.mode].gates) * self.units

    @property
    def prefixes(self) -> list[str]:
        """The prefixes of each cell's parameters: l0_, r0_, l1_, ..."""
        return [f"{d}{layer}_" for layer in range(self.layers) for d in self.directions]

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the states."""
        return tuple(self.state_widths)

    @property
    def state_widths(self) -> dict[str, int]:
        """The features of each state, by its name."""
        cell = {"state_cell": self.units} if self.mode == "lstm" else {}
        return {"state": self.width, **cell}

    @property
    def usual_activations(self) -> tuple[str, ...]:
        """The activations of a cell that states none."""
        return ACTIVATIONS_OF[self.mode]

    def size(self, width: int) -> int:
        """Return the length of MXNet's vector for data of this width."""
        return sum(math.prod(shape) for _, shape in self.pieces(width))

    @property
    def usual(self) -> bool:
        """Whether the cells are those of cells.py."""
        odd = self.activations or self.clip or self.peepholes or self.input_forget
        return self.reset_after and not odd and self.projection is None

    def pieces(self, width: int) -> Iterator[tuple[str, Shape]]:
        """Yield name and shape of each parameter, in the order of MXNet's vector.

        The weights of all cells come first, then all biases. `width` is that of the data.
        """
        for at, prefix in enumerate(self.prefixes):
            first = at < len(self.directions)
            below = width if first else len(self.directions) * self.width
            yield f"{prefix}i2h_weight", (self.rows, below)
            yield f"{prefix}h2h_weight", (self.rows, self.width)
            if self.projection is not None:
                yield f"{prefix}h2r_weight", (self.projection, self.units)
        for prefix in self.prefixes:
            for kind in ("i2h", "h2h"):
                yield f"{prefix}{kind}_bias", (self.rows,)


@dataclass(frozen=True)
class Unroller:
    """A recurrent network on its inputs, about to be unrolled."""

    #: The network.
    form: Form
    #: The number of time steps.
    length: int
    #: Symbols by name: data, each parameter as `l0_i2h_weight`, and where there are any the states
    #: and sequence_length.
    inputs: Mapping[str, Symbol]
    #: Whether last states are asked for; if not, they may be those behind a sample's last step.
    ends: bool

    @property
    def _lengths(self) -> Symbol | None:
        return self.inputs.get("sequence_length")

    def run(self) -> Symbol:
        """Return the outputs of all time steps as one symbol, and the last states behind them."""
        form, count = self.form, len(self.form.prefixes)
        states = [
            list(sym.SliceChannel(self.inputs[n], num_outputs=count, axis=0, squeeze_axis=True))
            for n in form.states
            if n in self.inputs
        ]
        steps: Steps = self.inputs["data"]
        ends: list[States] = []
        for layer in range(form.layers):
            if self._lengths is None or form.directions != "r":
                steps = split_steps(self.length, steps, TNC)
            halves: list[Steps] = []
            for letter in form.directions:
                outputs, end = self._one_way(
                    f"{letter}{layer}_", steps, [s[len(ends)] for s in states]
                )
                halves.append(outputs)
                ends.append(end)
            last = layer == form.layers - 1
            steps = self._join(halves, f"bi_l{layer}_", merge=last)
            if form.dropout > 0 and not last:
                steps, _ = DropoutCell(form.dropout).unroll(self.length, steps, [], TNC)
        assert isinstance(steps, Symbol)
        if self._lengths is not None:
            steps = sym.SequenceMask(steps, self._lengths, use_sequence_length=True)
        return sym.Group([steps, *(sym.stack(*of, axis=0) for of in zip(*ends, strict=True))])

    def _one_way(self, prefix: str, steps: Steps, states: States) -> tuple[Steps, States]:
        """Return the outputs of one cell in the order of the data's steps, and its last states."""
        backward, cell = prefix[0] == "r", self._cell(prefix)
        if backward:
            steps = self._turned(steps)
        states = states or cell.begin_state()
        outputs, kept = [], []
        for step in split_steps(self.length, steps, TNC):
            output, states = cell(step, states)
            outputs.append(output)
            kept.append(states)
        if self._lengths is not None and self.ends:
            states = [
                sym.SequenceLast(merge_steps(of, TNC), self._lengths, use_sequence_length=True)
                for of in zip(*kept, strict=True)
            ]
        return (self._turned(outputs) if backward else outputs), states

    def _turned(self, steps: Steps) -> Steps:
        """Return the steps of each sample in reverse order."""
        if self._lengths is None:
            assert not isinstance(steps, Symbol)
            return steps[::-1]
        return sym.SequenceReverse(_merged(steps), self._lengths, use_sequence_length=True)

    def _join(self, halves: list[Steps], name: str, merge: bool) -> Steps:
        """Join the outputs of both directions; an output carries the later of two time steps."""
        if len(halves) == 1:
            return _merged(halves[0]) if merge else halves[0]
        if merge or self._lengths is not None:
            return sym.Concat(*map(_merged, halves), dim=2, name=f"{name}out")
        joined = []
        for t, pair in enumerate(zip(*halves, strict=True)):
            with AttrScope(time_step=str(max(t, self.length - 1 - t))):
                joined.append(sym.Concat(*pair, dim=1, name=f"{name}t{t}"))
        return joined

    def _cell(self, prefix: str) -> BaseRNNCell:
        """Return the cell of a layer and direction."""
        form, given = self.form, RNNParams(prefix)
        for name, symbol in self.inputs.items():
            if name.startswith(prefix):
                given.set(name, symbol)
        if form.usual and form.mode.startswith("rnn_"):
            return RNNCell(form.units, form.mode.removeprefix("rnn_"), prefix, given)
        if form.projection is not None:
            return ProjectedLSTM(form.units, prefix, given, form.projection)
        if form.usual:
            return CELLS[form.mode](form.units, prefix=prefix, params=given)
        at, usual = form.directions.index(prefix[0]), form.usual_activations
        words = form.activations[at * len(usual) : (at + 1) * len(usual)] or usual
        clips = [form.clip, form.clip, None]  # an LSTM's state is not clipped
        gates = [gate(word, clip) for word, clip in zip(words, clips, strict=False)]
        if form.mode == "lstm":
            peephole = self.inputs.get(f"{prefix}peephole")
            return LSTMVariant(form.units, prefix, given, gates, peephole, form.input_forget)
        if form.mode == "gru":
            return GRUVariant(form.units, prefix, given, gates, form.reset_after)
        return RNNVariant(form.units, prefix, given, gates)


def _merged(steps: Steps) -> Symbol:
    return steps if isinstance(steps, Symbol) else merge_steps(steps, TNC)
