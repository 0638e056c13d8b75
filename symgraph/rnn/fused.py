"""The fused cell: a stack of cells, and MXNet's layout of all its parameters in one vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.core.types import Array
from symgraph.frontend import sym
from symgraph.frontend.symbol import Symbol
from symgraph.rnn.bidirectional import BidirectionalCell
from symgraph.rnn.cells import (
    BaseRNNCell,
    GRUCell,
    Inputs,
    LSTMCell,
    RNNCell,
    States,
    Steps,
    Unrolling,
    pop_parameter,
    require_count,
)
from symgraph.rnn.stacks import DropoutCell, SequentialRNNCell

Shape = tuple[int, ...]
MODES: dict[str, Callable[..., LSTMCell | GRUCell | RNNCell]] = {
    "rnn_relu": lambda hidden, prefix, bias: RNNCell(hidden, "relu", prefix),
    "rnn_tanh": lambda hidden, prefix, bias: RNNCell(hidden, "tanh", prefix),
    "lstm": lambda hidden, prefix, bias: LSTMCell(hidden, prefix, forget_bias=bias),
    "gru": lambda hidden, prefix, bias: GRUCell(hidden, prefix),
}


class FusedRNNCell(BaseRNNCell):
    """A stack of layers with the names of `mx.rnn.FusedRNNCell`.

    In MXNet the cell is one cuDNN kernel with one parameter, the vector `<prefix>parameters`. Here
    it is the stack that `unfuse` returns, with that stack's parameters, so layers can be placed and
    cut. As in MXNet, `pack_weights` and `unpack_weights` convert between the vector and one array
    per gate: `cell.unfuse().pack_weights(cell.unpack_weights(params))` converts the parameters of
    an MXNet network to those of a network here.

    Args:
        num_hidden: units per layer and direction.
        num_layers: number of layers.
        mode: rnn_relu, rnn_tanh, lstm or gru.
        bidirectional: whether each layer has a forward and a backward cell.
        dropout: probability of dropout between layers.
        get_next_state: whether `unroll` returns the last states; otherwise it returns none.
        forget_bias: initial bias of the forget gates of an lstm.
        prefix: prefix of all names; by default `<mode>_`.

    Raises:
        GraphError: for an unknown mode or a wrong number.
    """

    def __init__(
        self,
        num_hidden: int,
        num_layers: int = 1,
        mode: str = "lstm",
        bidirectional: bool = False,
        dropout: float = 0.0,
        get_next_state: bool = False,
        forget_bias: float = 1.0,
        prefix: str | None = None,
    ) -> None:
        if mode not in MODES:
            raise GraphError(f"FusedRNNCell: unknown mode {mode!r}: {nearest(mode, MODES)}")
        require_count("FusedRNNCell", "num_layers", num_layers)
        self._num_hidden = num_hidden
        self._num_layers = num_layers
        self._make = MODES[mode]
        self._directions = "lr" if bidirectional else "l"
        self._dropout = dropout
        self._get_next_state = get_next_state
        self._forget_bias = forget_bias
        self._stack: SequentialRNNCell | None = None
        super().__init__(f"{mode}_" if prefix is None else prefix)
        self._stack = self.unfuse()
        self._params = self._stack.params
        self._gates = self._make(1, "", 0.0).gates

    def unfuse(self) -> SequentialRNNCell:
        """Return a new stack of cells, with parameters `<prefix>l0_i2h_weight`, ..."""
        stack = SequentialRNNCell()
        for layer in range(self._num_layers):
            cells = [
                self._make(self._num_hidden, f"{self._prefix}{d}{layer}_", self._forget_bias)
                for d in self._directions
            ]
            joined = f"{self._prefix}bi_l{layer}_"
            both = len(cells) > 1
            stack.add(BidirectionalCell(cells[0], cells[1], joined) if both else cells[0])
            if self._dropout > 0 and layer < self._num_layers - 1:
                stack.add(DropoutCell(self._dropout, prefix=f"{self._prefix}_dropout{layer}_"))
        return stack

    @property
    def can_step(self) -> bool:
        return False

    @property
    def leaves(self) -> list[BaseRNNCell]:
        return self.unfuse().leaves

    @property
    def state_info(self) -> list[dict[str, Any]]:
        """The states of the stack, layer by layer; MXNet has all layers in one array."""
        return [] if self._stack is None else self._stack.state_info

    def reset(self) -> None:
        super().reset()
        if self._stack is not None:
            self._stack.reset()

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> States:
        self._require_own()
        assert self._stack is not None
        return self._stack.begin_state(func, **kwargs)

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        raise AssertionError("a cell that cannot step was stepped")

    def _unroll(self, inputs: Inputs, states: States, how: Unrolling) -> tuple[Steps, States]:
        """Unroll the stack; outputs are merged unless merge_outputs is False."""
        assert self._stack is not None
        merge = how.merge is not False
        outputs, ends = self._stack.unroll(how.length, inputs, states, **how.named(merge=merge))
        return outputs, ends if self._get_next_state else []

    # -- MXNet's parameter vector --------------------------------------------------------------

    def parameter_count(self, num_input: int) -> int:
        """Return the size of the vector for inputs of shape (B, num_input)."""
        return sum(int(np.prod(shape)) for _, shape in self._pieces(num_input))

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the vector `<prefix>parameters` by copies: one array per gate."""
        table = dict(args)
        name = f"{self._prefix}parameters"
        vector = pop_parameter(table, name)
        per_input = len(self._directions) * len(self._gates) * self._num_hidden
        num_input, rest = divmod(vector.size - self.parameter_count(0), per_input)
        if num_input < 1 or rest:
            raise ShapeError(
                f"parameter {name!r} has {vector.size} elements, which is not "
                f"{self.parameter_count(0)} plus {per_input} per input of the cell"
            )
        for piece, part in self._cut(vector, num_input):
            table[piece] = part.copy()
        return table

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Replace the arrays of gates by the vector `<prefix>parameters`."""
        table = dict(args)
        first = f"{self._prefix}l0_i2h{self._gates[0]}_weight"
        weight = table[first] if first in table else pop_parameter(table, first)
        vector = np.empty(self.parameter_count(weight.shape[1]), weight.dtype)
        for piece, part in self._cut(vector, weight.shape[1]):
            part[...] = pop_parameter(table, piece)
        table[f"{self._prefix}parameters"] = vector
        return table

    def _cut(self, vector: Array, num_input: int) -> Iterator[tuple[str, Array]]:
        """Yield the named pieces of the vector, as views."""
        at = 0
        for name, shape in self._pieces(num_input):
            size = int(np.prod(shape))
            yield name, vector[at : at + size].reshape(shape)
            at += size

    def _pieces(self, num_input: int) -> Iterator[tuple[str, Shape]]:
        """Yield (name, shape) of the pieces: weights, then biases, each by layer and direction."""
        hidden = self._num_hidden
        for what in ("weight", "bias"):
            for layer in range(self._num_layers):
                below = len(self._directions) * hidden if layer else num_input
                for direction in self._directions:
                    for kind, width in (("i2h", below), ("h2h", hidden)):
                        shape = (hidden, width) if what == "weight" else (hidden,)
                        for gate in self._gates:
                            yield f"{self._prefix}{direction}{layer}_{kind}{gate}_{what}", shape
