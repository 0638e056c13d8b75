"""Cells made of cells: stacks, dropout, zoneout and residual connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from symgraph.core.errors import GraphError
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.symbol import Symbol
from symgraph.rnn.cells import (
    BaseRNNCell,
    Inputs,
    States,
    Steps,
    Unrolling,
    merge_steps,
    require_cell,
    split_steps,
    with_batch_of,
)


class CellGroup(BaseRNNCell):
    """A cell made of cells; its states and parameters are theirs, in order."""

    def __init__(self, cells: Iterable[BaseRNNCell] = ()) -> None:
        self._cells: list[BaseRNNCell] = []
        super().__init__()
        for cell in cells:
            self._include(cell)

    def _include(self, cell: BaseRNNCell) -> None:
        self._params.include(require_cell(type(self).__name__, cell).params)
        self._cells.append(cell)

    def reset(self) -> None:
        super().reset()
        for cell in self._cells:
            cell.reset()

    @property
    def can_step(self) -> bool:
        return all(cell.can_step for cell in self._cells)

    @property
    def leaves(self) -> list[BaseRNNCell]:
        return [leaf for cell in self._cells for leaf in cell.leaves]

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [info for cell in self._cells for info in cell.state_info]

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> States:
        self._require_own()
        return [state for cell in self._cells for state in cell.begin_state(func, **kwargs)]

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        for cell in self._cells:
            args = cell.unpack_weights(args)
        return dict(args)

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        for cell in self._cells:
            args = cell.pack_weights(args)
        return dict(args)

    def _with_states(self, states: Sequence[Symbol]) -> Iterator[tuple[BaseRNNCell, States]]:
        """Yield each cell with its states."""
        rest = iter(states)
        for cell in self._cells:
            yield cell, [next(rest) for _ in cell.state_info]


class SequentialRNNCell(CellGroup):
    """A stack of cells; its states are theirs, in order (`mx.rnn.SequentialRNNCell`)."""

    def __init__(self) -> None:
        super().__init__()

    def add(self, cell: BaseRNNCell) -> None:
        """Put a cell on top; GraphError if other parameters have the names of its parameters."""
        self._include(cell)

    def _require_own(self, states: Sequence[Symbol] | None = None) -> None:
        if not self._cells:
            raise GraphError("SequentialRNNCell has no cells yet: add one")
        super()._require_own(states)

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        ends: States = []
        for cell, own in self._with_states(states):
            inputs, end = cell(inputs, own)
            ends += end
        return inputs, ends

    def _unroll(self, inputs: Inputs, states: States, how: Unrolling) -> tuple[Steps, States]:
        """Unroll layer by layer: all nodes of a layer precede those of the next one."""
        steps: Any = inputs
        ends: States = []
        for number, (cell, cell_states) in enumerate(self._with_states(states), 1):
            last = how.merge if number == len(self._cells) else None
            steps, end = cell.unroll(how.length, steps, cell_states, **how.named(merge=last))
            ends += end
        return steps, ends


class DropoutCell(BaseRNNCell):
    """Dropout of the inputs with probability `dropout`, without states (`mx.rnn.DropoutCell`)."""

    def __init__(self, dropout: float, prefix: str = "dropout_") -> None:
        super().__init__(prefix)
        self.dropout = _share(f"DropoutCell {prefix!r}: dropout", dropout)

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return []

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        return (sym.Dropout(inputs, p=self.dropout) if self.dropout > 0 else inputs), states

    def _unroll(self, inputs: Inputs, states: States, how: Unrolling) -> tuple[Steps, States]:
        """Apply dropout once to a sequence that is one symbol."""
        if isinstance(inputs, Symbol) and how.merge is not False:
            return self._step("", inputs, states)
        return super()._unroll(inputs, states, how)


class ModifierCell(BaseRNNCell):
    """Base class of cells around a base cell, with its parameters (`mx.rnn.ModifierCell`).

    From then on the base cell can be used only through this cell.
    """

    def __init__(self, base_cell: BaseRNNCell) -> None:
        self.base_cell = require_cell(type(self).__name__, base_cell)
        super().__init__(params=base_cell.params)
        base_cell._modified = True

    @contextmanager
    def _base(self) -> Iterator[BaseRNNCell]:
        """Yield the base cell, which can be used inside the block."""
        self.base_cell._modified = False
        try:
            yield self.base_cell
        finally:
            self.base_cell._modified = True

    def reset(self) -> None:
        super().reset()
        self.base_cell.reset()

    @property
    def can_step(self) -> bool:
        return self.base_cell.can_step

    @property
    def leaves(self) -> list[BaseRNNCell]:
        return self.base_cell.leaves

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return self.base_cell.state_info

    def begin_state(self, func: Callable[..., Symbol] = sym.zeros, **kwargs: Any) -> States:
        self._require_own()
        with self._base() as base:
            return base.begin_state(func, **kwargs)

    def unpack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return self.base_cell.unpack_weights(args)

    def pack_weights(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return self.base_cell.pack_weights(args)


class ZoneoutCell(ModifierCell):
    """Keep random units of the last time step while training (`mx.rnn.ZoneoutCell`).

    Outside training all units are new ones and not an average, as in MXNet. Source: Krueger et al.,
    arXiv:1606.01305.

    Args:
        base_cell: the cell, which must be able to step.
        zoneout_outputs: share of an output's units that keep their value; the output before the
            first one is 0.
        zoneout_states: share of a state's units that keep their value.

    Raises:
        GraphError: for a cell that cannot be stepped, or a share outside 0 to 1.
    """

    def __init__(
        self, base_cell: BaseRNNCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0
    ) -> None:
        if not require_cell(type(self).__name__, base_cell).can_step:
            raise GraphError(
                f"{type(base_cell).__name__} cannot be stepped, so it has no zoneout: put "
                "ZoneoutCell around the cells in it"
            )
        self._last: Symbol | None = None
        super().__init__(base_cell)
        self.zoneout_outputs = _share("ZoneoutCell: zoneout_outputs", zoneout_outputs)
        self.zoneout_states = _share("ZoneoutCell: zoneout_states", zoneout_states)

    def reset(self) -> None:
        super().reset()
        self._last = None

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        old = [with_batch_of(state, inputs) for state in states]
        with self._base() as base:
            output, new = base(inputs, old)
        name = f"{base._prefix}{name}zoneout"
        if self.zoneout_outputs:
            last = (
                sym.zeros_like(output, name=f"{name}_first") if self._last is None else self._last
            )
            output = _zone_out(f"{name}_output", self.zoneout_outputs, output, last)
        self._last = output
        if self.zoneout_states:
            pairs = enumerate(zip(new, old, strict=True))
            new = [_zone_out(f"{name}_state{i}", self.zoneout_states, n, o) for i, (n, o) in pairs]
        return output, new


def _share(what: str, share: float) -> float:
    """Return the share of units; GraphError unless it is a number from 0 to 1."""
    if not isinstance(share, int | float | np.number) or not 0 <= share <= 1:
        raise GraphError(f"{what}={share!r} is not a valid float from 0 to 1")
    return float(share)


def _zone_out(name: str, share: float, new: Symbol, old: Symbol) -> Symbol:
    """Select new units, and old ones where dropout of a 1 returns 0."""
    ones = sym.ones_like(new, name=f"{name}_ones")
    mask = sym.Dropout(ones, p=share, name=f"{name}_mask")
    return sym.where(mask, new, old, name=name)


class ResidualCell(ModifierCell):
    """Add the inputs to the base cell's outputs (`mx.rnn.ResidualCell`; arXiv:1609.08144)."""

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        with self._base() as base:
            output, states = base(inputs, states)
        return _add_residual(output, inputs), states

    def _unroll(self, inputs: Inputs, states: States, how: Unrolling) -> tuple[Steps, States]:
        """Unroll the base cell in its own way and add the inputs."""
        steps = split_steps(how.length, inputs, how.layout, how.prefix)
        if how.valid_length is not None:
            steps = list(how._replace(merge=False).finished(steps))
        with self._base() as base:
            outputs, states = base.unroll(how.length, steps, states, **how.named(prefix=""))
        if isinstance(outputs, Symbol):
            if not isinstance(inputs, Symbol) or how.valid_length is not None:
                inputs = merge_steps(steps, how.layout)
            return _add_residual(outputs, inputs), states
        sums = []
        for t, (output, step) in enumerate(zip(outputs, steps, strict=True)):
            with AttrScope(time_step=str(t)):
                sums.append(_add_residual(output, step))
        return sums, states


def _add_residual(output: Symbol, inputs: Symbol) -> Symbol:
    return sym.elemwise_add(output, inputs, name=f"{output.name}_plus_residual")
