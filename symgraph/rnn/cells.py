"""Recurrent cells: one time step of a network, stepped by hand or unrolled (MXNet's `mx.rnn`).

Every node of a cell has its time step as the attribute `time_step`, so the unrolled network can be
cut along time too. Parameters, outputs and dense layers have MXNet's names. The arithmetic of all
gates of an LSTM or GRU is a single node, `<prefix>t<step>_out`, which a backend computes in one
pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.init import LSTMBias
from symgraph.frontend.symbol import Symbol

States = list[Symbol]
Steps = Symbol | list[Symbol]  # one symbol with a time axis, or one symbol per time step
Inputs = Symbol | Sequence[Symbol] | None  # None: new variables
PARAMETERS = (("i2h", "weight"), ("i2h", "bias"), ("h2h", "weight"), ("h2h", "bias"))


class RNNParams:
    """A container of variables by name, for cells to share (`mx.rnn.RNNParams`)."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._params: dict[str, Symbol] = {}

    def get(self, name: str, **kwargs: Any) -> Symbol:
        """Return the variable `<prefix><name>`.

        A new one is made with these arguments of Variable.
        """
        name = self.prefix + name
        if name not in self._params:
            self._params[name] = sym.Variable(name, **kwargs)
        return self._params[name]

    def set(self, name: str, symbol: Symbol) -> None:
        """Let a symbol stand for the variable of this whole name."""
        self._params[name] = symbol

    def include(self, other: RNNParams) -> None:
        """Add another container's variables; GraphError for two different ones of one name."""
        for name, variable in other._params.items():
            if self._params.setdefault(name, variable) is not variable:
                raise GraphError(
                    f"two cells have a parameter {name!r}: give them different prefixes, or share "
                    "it with params="
                )


class Unrolling(NamedTuple):
    """How a cell is to be unrolled: the arguments of `unroll`."""

    length: int
    layout: str
    merge: bool | None
    prefix: str
    valid_length: Symbol | None

    def named(self, **changes: Any) -> dict[str, Any]:
        """Return the arguments but for the length, with changes, for `unroll` of another cell."""
        how = self._replace(**changes)
        return {
            "layout": how.layout,
            "merge_outputs": how.merge,
            "input_prefix": how.prefix,
            "valid_length": how.valid_length,
        }

    def finished(self, outputs: list[Symbol]) -> Steps:
        """Return the outputs of all steps, merged or not, and 0 behind each sample's length."""
        if self.valid_length is None:
            return merge_steps(outputs, self.layout) if self.merge else outputs
        merged = sym.SequenceMask(
            merge_steps(outputs, self.layout),
            self.valid_length,
            use_sequence_length=True,
            axis=1 if time_axis(self.layout) else 0,
        )
        return merged if self.merge else split_steps(self.length, merged, self.layout)


class BaseRNNCell(ABC):
    """Base class of cells: `output, states = cell(inputs, states)` (`mx.rnn.BaseRNNCell`).

    A cell of one's own has `state_info` and, as in MXNet, `__call__(inputs, states)`, which counts
    its time steps in `self._counter`; or `_step`, which is told the prefix of names. Parameters are
    `self.params.get("i2h_weight")` and so on.

    Args:
        prefix: prefix of the names of nodes and parameters.
        params: a container of variables to share with another cell; None: a new one.
    """

    #: The gates in order, as in the names of unpacked parameters.
    gates: Sequence[str] = ()

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._prefix = prefix
        self._params = RNNParams(prefix) if params is None else params
        self._modified = False
        self.reset()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._prefix}>"

    def reset(self) -> None:
        """Restart the numbers of time steps and first states at 0, for another graph."""
        self._counter = -1
        self._init_counter = -1

    @property
    def params(self) -> RNNParams:
        """The parameters, which another cell can share."""
        return self._params

    @property
    def can_step(self) -> bool:
        """Whether the cell can be called for a single time step."""
        return True

    @property
    def leaves(self) -> list[BaseRNNCell]:
        """The innermost cells that this cell adds to networks: itself."""
        return [self]

    @property
    @abstractmethod
    def state_info(self) -> list[dict[str, Any]]:
        """The `shape` of each state, with 0 for the batch, and its `__layout__`."""

    @property
    def state_shape(self) -> list[tuple[int, ...]]:
        """The shapes of the states, with 0 for the batch."""
        return [info["shape"] for info in self.state_info]

    @property
    def _gate_names(self) -> Sequence[str]:
        """The gates, under MXNet's name, which cells of one's own may override."""
        return self.gates

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        """Build one time step; `name` prefixes the names of its nodes."""
        raise NotImplementedError(f"{type(self).__name__} has neither __call__ nor _step")

    def __call__(self, inputs: Symbol, states: Sequence[Symbol]) -> tuple[Symbol, States]:
        """Build the next time step and return (output, states).

        Args:
            inputs: the inputs, of shape (B, I).
            states: the states, of the shapes `state_shape`.

        Raises:
            GraphError: if the cell cannot be stepped, or for a wrong number of states.
            TypeError: for a state that is not a symbol.
        """
        self._require_own(states)
        if not self.can_step:
            raise GraphError(f"{type(self).__name__} {self._prefix!r} cannot be stepped: unroll it")
        self._counter += 1
        with AttrScope(time_step=str(self._counter)):
            return self._step(f"{self._prefix}t{self._counter}_", inputs, list(states))

    def _names(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each parameter's name with the names of its gates' parts."""
        if not self._gate_names:
            return
        prefix = self._params.prefix
        for kind, what in PARAMETERS:
            parts = [f"{prefix}{kind}{gate}_{what}" for gate in self._gate_names]
            yield f"{prefix}{kind}_{what}", parts

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Split this cell's parameters into one array per gate (MXNet unpack_weights).

        `lstm_i2h_weight` of shape (4H, I) becomes `lstm_i2h_i_weight`, `lstm_i2h_f_weight`, ... of
        shape (H, I), which are copies. Other entries stay. Raises GraphError for a missing
        parameter.
        """
        table = dict(args)
        for name, parts in self._names():
            if name not in table and table.keys() >= {*parts}:
                continue  # already unpacked by a cell that shares it
            packed = pop_parameter(table, name)
            if len(packed) % len(parts):
                raise ShapeError(
                    f"parameter {name!r} has {len(packed)} rows, which are not {len(parts)} gates "
                    "of equal size"
                )
            for part, rows in zip(parts, np.split(packed, len(parts)), strict=True):
                table[part] = rows.copy()
        return table

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Join the arrays of gates; the inverse of `unpack_weights` (MXNet pack_weights)."""
        table = dict(args)
        for name, parts in self._names():
            if name not in table or name in parts:  # otherwise packed by a cell that shares it
                table[name] = np.concatenate([pop_parameter(table, part) for part in parts])
        return table

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> States:
        """Return the states before the first time step: zeros, or results of `func`.

        `func` is called with `name`, the entries of `state_info` and the keywords; with
        `sg.sym.Variable`, states become inputs of the network. Zeros take their batch size from the
        first input.
        """
        self._require_own()
        # Plain zeros need a known shape; these take it from an input (`with_batch_of`).
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
        valid_length: Symbol | None = None,
    ) -> tuple[Steps, States]:
        """Build time steps 0 to length - 1 and return (outputs, last states).

        Args:
            length: number of time steps.
            inputs: one symbol whose time axis is the T of `layout`, or one symbol of shape (B, I)
                per time step; None makes variables `<input_prefix>t0_data`, ...
            begin_state: the first states; by default `begin_state()`.
            layout: layout of merged inputs and outputs, "NTC" or "TNC".
            merge_outputs: true for one symbol in `layout`, false for a list; None: the cheaper one.
            input_prefix: prefix of the names of input variables.
            valid_length: the number of time steps of each sample, of shape (B,). Outputs behind it
                are 0, states are those of a sample's last step, and cells that read backward begin
                there (as in Gluon).

        Raises:
            GraphError: for a wrong number of inputs or states.
        """
        self._require_own(begin_state)
        require_count(f"{type(self).__name__} {self._prefix!r}", "length", length)
        self.reset()
        states = self.begin_state() if begin_state is None else list(begin_state)
        how = Unrolling(length, layout, merge_outputs, input_prefix, valid_length)
        return self._unroll(inputs, states, how)

    def _unroll(self, inputs: Inputs, states: States, how: Unrolling) -> tuple[Steps, States]:
        """Unroll from these checked states; cells that unroll in another way override this."""
        outputs: list[Symbol] = []
        kept: list[States] = []
        for t, step in enumerate(split_steps(how.length, inputs, how.layout, how.prefix)):
            with AttrScope(time_step=str(t)):
                output, states = self(step, [with_batch_of(state, step) for state in states])
            outputs.append(output)
            kept.append(states)
        if how.valid_length is not None:
            states = [
                sym.SequenceLast(merge_steps(of, "TNC"), how.valid_length, use_sequence_length=True)
                for of in zip(*kept, strict=True)
            ]
        return how.finished(outputs), states

    def _get_activation(
        self, inputs: Symbol, activation: str | Callable[..., Symbol], **kwargs: Any
    ) -> Symbol:
        """Apply an `act_type` of Activation, or a function of a symbol and a `name` (MXNet)."""
        if isinstance(activation, str):
            return sym.Activation(inputs, act_type=activation, **kwargs)
        return activation(inputs, **kwargs)

    def _require_own(self, states: Sequence[Symbol] | None = None) -> None:
        who = f"{type(self).__name__} {self._prefix!r}"
        if self._modified:
            raise GraphError(f"{who} is part of a modifier cell now: call that cell instead")
        count = len(self.state_info)
        if states is not None and len(states) != count:
            raise GraphError(f"{who} has {count} states, but {len(states)} are given")
        for state in () if states is None else states:
            if not isinstance(state, Symbol):
                raise TypeError(f"{who}: states must be symbols, not {type(state).__name__}")


def require_count(who: str, what: str, number: Any) -> None:
    """Raise GraphError unless the number is whole and at least 1."""
    if not isinstance(number, int | np.integer) or number < 1:
        raise GraphError(f"{who}: {what}={number!r} is not a valid int of 1 or more")


def require_cell(who: str, cell: Any) -> BaseRNNCell:
    """Return the cell; TypeError if it is not one."""
    if not isinstance(cell, BaseRNNCell):
        raise TypeError(f"{who} takes cells, such as LSTMCell(8), not {cell!r}")
    return cell


def split_steps(
    length: int, inputs: Symbol | Sequence[Symbol] | None, layout: str, prefix: str = ""
) -> list[Symbol]:
    """Return the inputs of each time step; None makes variables `<prefix>t0_data`, ..."""
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
    """Join time steps into one symbol with a time axis."""
    axis = time_axis(layout)
    expanded = []
    for t, step in enumerate(steps):
        with AttrScope(time_step=str(t)):
            expanded.append(sym.expand_dims(step, axis=axis))
    return sym.Concat(*expanded, dim=axis)


def time_axis(layout: str) -> int:
    """Return the position of T in a layout; GraphError if it has none."""
    if "T" not in layout:
        raise GraphError(f"layout {layout!r} has no T, the time axis; write 'NTC' or 'TNC'")
    return layout.index("T")


class _DenseCell(BaseRNNCell):
    """A cell with a dense layer of the inputs (i2h) and of the state (h2h) for all gates."""

    #: Number of states.
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


def pop_parameter(args: MutableMapping[str, Any], name: str) -> Any:
    """Remove a parameter from a table and return it; GraphError if it is missing."""
    if name not in args:
        raise GraphError(f"no parameter {name!r}; {nearest(name, args)}")
    return args.pop(name)


def with_batch_of(state: Symbol, inputs: Symbol) -> Symbol:
    """Return a state; one of `begin_state` without a batch size gets that of the inputs."""
    node = state.one("a state of a cell").node
    if node.op is None or node.op.name != "_begin_state":
        return state
    like = node.inputs[0].node
    if like.op is not None or like.name != f"{node.name}_like":
        return state
    swap: dict[str, Any] = {like.name: inputs}
    return state(**swap)


class RNNCell(_DenseCell):
    """A plain cell: h' = activation(W_i x + b_i + W_h h + b_h) (`mx.rnn.RNNCell`).

    Args:
        num_hidden: units.
        activation: the `act_type` of an Activation, or a function of a symbol and a `name`.
        prefix: prefix of the names of nodes and parameters.
        params: a container of variables to share with another cell.
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
        total = i2h + self._dense("h2h", name, with_batch_of(states[0], inputs))
        output = self._get_activation(total, self._activation, name=f"{name}out")
        return output, [output]


class LSTMCell(_DenseCell):
    """Long short-term memory, with gates i, f, c, o and states h, c (`mx.rnn.LSTMCell`).

    Among the internals, c is `<prefix>t<step>_out_state`.

    Args:
        num_hidden: units.
        prefix: prefix of the names of nodes and parameters.
        params: a container of variables to share with another cell.
        forget_bias: initial value of the forget gate's part of `i2h_bias`; not a separate term.
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
        h, c = (with_batch_of(state, inputs) for state in states)
        i2h, h2h = self._dense("i2h", name, inputs), self._dense("h2h", name, h)
        next_h, next_c = sym._lstm_gates(i2h, h2h, c, name=f"{name}out")
        return next_h, [next_h, next_c]


class GRUCell(_DenseCell):
    """Gated recurrent unit in cuDNN's form, with gates r, z, o (`mx.rnn.GRUCell`).

    n = tanh(i2h_o + r * h2h_o), where h2h_o includes its bias; h' = (1 - z) n + z h.
    """

    gates = ("_r", "_z", "_o")

    def __init__(
        self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        h = with_batch_of(states[0], inputs)
        inner = f"{name}_"  # in MXNet, names of inner nodes have a second underscore
        i2h, h2h = self._dense("i2h", inner, inputs), self._dense("h2h", inner, h)
        output = sym._gru_gates(i2h, h2h, h, name=f"{name}out")
        return output, [output]
