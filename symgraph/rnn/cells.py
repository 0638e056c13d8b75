"""Recurrent cells: one time step of a network, stepped by hand or unrolled (MXNet's `mx.rnn`).

Every node that a cell makes carries the number of its time step as the attribute `time_step`, so
that the unrolled network can be cut along time as well. Names are MXNet's, so parameters, outputs
and dense layers are found under the names that its users know; all the arithmetic of the gates of
an LSTM or GRU is one node, `<prefix>t<step>_out`, which a backend can do in one pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.init import LSTMBias
from symgraph.frontend.symbol import Symbol

States = list[Symbol]
Steps = Symbol | list[Symbol]  # a sequence: one symbol with a time axis, or one a time step
Inputs = Symbol | Sequence[Symbol] | None  # a sequence that is given; None: variables
PARAMETERS = (("i2h", "weight"), ("i2h", "bias"), ("h2h", "weight"), ("h2h", "bias"))


class RNNParams:
    """Variables by name; cells that hold the same container share them (MXNet RNNParams)."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **kwargs: Any) -> Symbol:
        """The variable `<prefix><name>`, made with these arguments of Variable if it is new."""
        name = self.prefix + name
        if name not in self._params:
            self._params[name] = sym.Variable(name, **kwargs)
        return self._params[name]

    def include(self, other: RNNParams) -> None:
        """Take in another container's variables; two different ones of a name raise GraphError."""
        for name, variable in other._params.items():
            if self._params.setdefault(name, variable) is not variable:
                raise GraphError(
                    f"two cells have a parameter {name!r}: give them different prefixes, or share "
                    "it with params="
                )


class BaseRNNCell(ABC):
    """One time step: `output, states = cell(inputs, states)` (MXNet BaseRNNCell).

    prefix begins the names of nodes and parameters. params: a container to share variables with
    another cell. Subclasses give `state_info` and `_step`.
    """

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._prefix = prefix
        self._params = RNNParams(prefix) if params is None else params
        self._modified = False
        self.reset()

    def reset(self) -> None:
        """Count time steps and begin states from 0 again, for another graph."""
        self._counter = -1
        self._init_counter = -1

    @property
    def params(self) -> RNNParams:
        """The parameters, to share them with another cell."""
        return self._params

    @property
    def can_step(self) -> bool:
        """Whether it can be called for one time step, and not unrolled only."""
        return True

    @property
    def leaves(self) -> list[BaseRNNCell]:
        """The cells without further cells in them that it puts into networks: itself."""
        return [self]

    @property
    @abstractmethod
    def state_info(self) -> list[dict[str, Any]]:
        """For each state its `shape`, with 0 for the batch, and its `__layout__`."""

    @property
    def state_shape(self) -> list[tuple[int, ...]]:
        """The shapes of the states, with 0 for the batch."""
        return [info["shape"] for info in self.state_info]

    @abstractmethod
    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Make one time step, with `name` before the names of its nodes."""

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, States]:
        """Make the next time step; inputs (B, I), states as `state_shape`: output and states."""
        self._require_own(states)
        if not self.can_step:
            raise GraphError(f"{type(self).__name__} {self._prefix!r} cannot be stepped: unroll it")
        self._counter += 1
        with AttrScope(time_step=str(self._counter)):
            return self._step(f"{self._prefix}t{self._counter}_", inputs, list(states))

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters with an array a gate in the place of this cell's (MXNet unpack_weights).

        `lstm_i2h_weight` (4H, I) becomes `lstm_i2h_i_weight`, `.._f_weight`, ... of (H, I), copies.
        Other entries stay. Raises GraphError for a parameter that is not there.
        """
        return dict(args)

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """What `unpack_weights` was given, from what it gave (MXNet pack_weights)."""
        return dict(args)

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> States:
        """The states before the first time step: zeros, or what `func` makes.

        func is called with `name`, the entries of `state_info` and the keywords; with Variable,
        states are inputs of the network. Zeros get their batch size from the first input.
        """
        self._require_own()
        # The shape of plain zeros must be known; these take it from an input, see `begun`.
        make = sym._begin_state if func is sym.zeros else func
        states = []
        for info in self.state_info:
            self._init_counter += 1
            name = f"{self._prefix}begin_state_{self._init_counter}"
            with AttrScope(time_step="0"):
                states.append(make(name=name, **(kwargs | info)))
        return states

    def unroll(
        self,
        length: int,
        inputs: Inputs = None,
        begin_state: Sequence[Symbol] | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        input_prefix: str = "",
    ) -> tuple[Steps, States]:
        """Make `length` time steps from 0 on: their outputs and the last states.

        inputs: one symbol, with time as the axis T of `layout`, or one a time step, each (B, I);
        None makes variables `<input_prefix>t0_data`, ... begin_state: default `begin_state()`.
        merge_outputs: one symbol in `layout` if true, a list if false; None: whichever is less
        work. Raises GraphError for another number of inputs or states.
        """
        self._require_own(begin_state)
        require_count(f"{type(self).__name__} {self._prefix!r}", "length", length)
        self.reset()
        states = self.begin_state() if begin_state is None else list(begin_state)
        return self._unroll(length, inputs, states, layout, merge_outputs, input_prefix)

    def _unroll(
        self,
        length: int,
        inputs: Inputs,
        states: States,
        layout: str,
        merge: bool | None,
        prefix: str,
    ) -> tuple[Steps, States]:
        """`unroll` from these first states, which fit; cells that unroll otherwise override it."""
        outputs = []
        for step in split_steps(length, inputs, layout, prefix):
            output, states = self(step, states)
            outputs.append(output)
        return (merge_steps(outputs, layout) if merge else outputs), states

    def _require_own(self, states: Sequence[Symbol] | None = None) -> None:
        who = f"{type(self).__name__} {self._prefix!r}"
        if self._modified:
            raise GraphError(f"{who} is part of a modifier cell now: call that one instead")
        count = len(self.state_info)
        if states is not None and len(states) != count:
            raise GraphError(f"{who} has {count} states, but {len(states)} are given")
        for state in () if states is None else states:
            if not isinstance(state, Symbol):
                raise TypeError(f"{who}: states are symbols, not {type(state).__name__}")


def require_count(who: str, what: str, number: Any) -> None:
    """GraphError unless it is a whole number of 1 or more."""
    if not isinstance(number, int | np.integer) or number < 1:
        raise GraphError(f"{who}: {what}={number!r} is not a valid int of 1 or more")


def require_cell(who: str, cell: Any) -> BaseRNNCell:
    """The cell; TypeError if it is none."""
    if not isinstance(cell, BaseRNNCell):
        raise TypeError(f"{who} is made of cells, such as LSTMCell(8), not of {cell!r}")
    return cell


def split_steps(
    length: int, inputs: Symbol | Sequence[Symbol] | None, layout: str, prefix: str = ""
) -> list[Symbol]:
    """The inputs of each time step."""
    if inputs is None:
        return [sym.Variable(f"{prefix}t{t}_data") for t in range(length)]
    if isinstance(inputs, Symbol):
        if len(inputs) > 1:
            raise GraphError(
                f"unroll takes one symbol or a list, but {inputs!r} has {len(inputs)} outputs; "
                "make it a list with list(inputs)"
            )
        axis = time_axis(layout)
        return list(sym.SliceChannel(inputs, num_outputs=length, axis=axis, squeeze_axis=True))
    if len(inputs) != length:
        raise GraphError(f"unroll over {length} time steps got {len(inputs)} inputs")
    return list(inputs)


def merge_steps(steps: Sequence[Symbol], layout: str) -> Symbol:
    """One symbol with a time axis."""
    axis = time_axis(layout)
    wide = []
    for t, step in enumerate(steps):
        with AttrScope(time_step=str(t)):
            wide.append(sym.expand_dims(step, axis=axis))
    return sym.Concat(*wide, dim=axis)


def time_axis(layout: str) -> int:
    if "T" not in layout:
        raise GraphError(f"layout {layout!r} has no T, the time axis; write 'NTC' or 'TNC'")
    return layout.index("T")


class _DenseCell(BaseRNNCell):
    """A cell of dense layers from the inputs (i2h) and from the state (h2h), one a gate.

    gates: what stands for each in the names of unpacked parameters, in order.
    """

    gates: tuple[str, ...]
    states = 1

    def __init__(
        self, num_hidden: int, prefix: str, params: RNNParams | None, bias: LSTMBias | None = None
    ) -> None:
        super().__init__(prefix, params)
        require_count(f"{type(self).__name__} {prefix!r}", "num_hidden", num_hidden)
        self._num_hidden = num_hidden
        self._weights = {
            "i2h": (self._params.get("i2h_weight"), self._params.get("i2h_bias", init=bias)),
            "h2h": (self._params.get("h2h_weight"), self._params.get("h2h_bias")),
        }

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": (0, self._num_hidden), "__layout__": "NC"} for _ in range(self.states)]

    def _dense(self, kind: str, name: str, data: Symbol) -> Symbol:
        weight, bias = self._weights[kind]
        units = len(self.gates) * self._num_hidden
        return sym.FullyConnected(data, weight, bias, num_hidden=units, name=f"{name}{kind}")

    def _names(self) -> Iterator[tuple[str, list[str]]]:
        """Each parameter's name, and those of its gates."""
        prefix = self._params.prefix
        for kind, what in PARAMETERS:
            parts = [f"{prefix}{kind}{gate}_{what}" for gate in self.gates]
            yield f"{prefix}{kind}_{what}", parts

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(args)
        for name, parts in self._names():
            if name not in found and found.keys() >= {*parts}:
                continue  # unpacked by a cell that shares it
            packed = take(found, name)
            if len(packed) % len(parts):
                raise ShapeError(
                    f"parameter {name!r} has {len(packed)} rows, which are not {len(parts)} gates "
                    "of equal size"
                )
            for part, rows in zip(parts, np.split(packed, len(parts)), strict=True):
                found[part] = rows.copy()
        return found

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        found = dict(args)
        for name, parts in self._names():
            if name not in found or name in parts:  # else packed by a cell that shares it
                found[name] = np.concatenate([take(found, part) for part in parts])
        return found


def take(args: MutableMapping[str, Any], name: str) -> Any:
    """Take a parameter out of a table of them; GraphError if it is not there."""
    if name not in args:
        raise GraphError(f"no parameter {name!r} among those given; {nearest(name, args)}")
    return args.pop(name)


def begun(state: Symbol, inputs: Symbol) -> Symbol:
    """The state; if it is one of `begin_state` that is not used yet, with its batch size."""
    node = state.one("a state of a cell").node
    if node.op is None or node.op.name != "_begin_state":
        return state
    like = node.inputs[0].node
    if like.op is not None or like.name != f"{node.name}_like":
        return state
    swap: dict[str, Any] = {like.name: inputs}
    return state(**swap)


class RNNCell(_DenseCell):
    """h' = activation(W_i x + b_i + W_h h + b_h) (MXNet RNNCell).

    activation: the `act_type` of an Activation, or a function of a symbol and a `name`.
    """

    gates = ("",)

    def __init__(
        self,
        num_hidden: int,
        activation: str | Callable[..., Symbol] = "tanh",
        prefix: str = "rnn_",
        params: RNNParams | None = None,
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        i2h = self._dense("i2h", name, inputs)
        total = i2h + self._dense("h2h", name, begun(states[0], inputs))
        if isinstance(self._activation, str):
            output = sym.Activation(total, act_type=self._activation, name=f"{name}out")
        else:
            output = self._activation(total, name=f"{name}out")
        return output, [output]


class LSTMCell(_DenseCell):
    """Long short-term memory; gates in the order i, f, c, o; states h, c (MXNet LSTMCell).

    forget_bias is no term of its own: it is the initial value of the forget gate's part of
    `i2h_bias`. Among the internals, c is `<prefix>t<step>_out_state`.
    """

    gates = ("_i", "_f", "_c", "_o")
    states = 2

    def __init__(
        self,
        num_hidden: int,
        prefix: str = "lstm_",
        params: RNNParams | None = None,
        forget_bias: float = 1.0,
    ) -> None:
        super().__init__(num_hidden, prefix, params, LSTMBias(forget_bias))

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        h, c = (begun(state, inputs) for state in states)
        i2h, h2h = self._dense("i2h", name, inputs), self._dense("h2h", name, h)
        next_h, next_c = sym._lstm_gates(i2h, h2h, c, name=f"{name}out")
        return next_h, [next_h, next_c]


class GRUCell(_DenseCell):
    """Gated recurrent unit in cuDNN's form; gates in the order r, z, o (MXNet GRUCell).

    n = tanh(i2h_o + r * h2h_o) with the bias inside h2h_o; h' = (1 - z) n + z h.
    """

    gates = ("_r", "_z", "_o")

    def __init__(
        self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        h = begun(states[0], inputs)
        inner = f"{name}_"  # MXNet's names of all inner nodes have a second underscore
        i2h, h2h = self._dense("i2h", inner, inputs), self._dense("h2h", inner, h)
        output = sym._gru_gates(i2h, h2h, h, name=f"{name}out")
        return output, [output]
