"""The bidirectional cell: one cell reads the sequence forward, another one backward.

The backward cell counts its time steps from the end of the sequence, so each cell can be cut along
time. An output needs both cells and carries the later of its two time steps.
"""

from __future__ import annotations

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
    split_steps,
)
from symgraph.rnn.stacks import CellGroup


class BidirectionalCell(CellGroup):
    """Two cells in opposite directions with joined outputs (`mx.rnn.BidirectionalCell`).

    The states are those of l_cell, then those of r_cell, in one list (MXNet returns two). Outputs
    are called `<output_prefix>t<step>`, or `<output_prefix>out` if merged. The cell cannot be
    stepped, only unrolled.
    """

    def __init__(
        self, l_cell: BaseRNNCell, r_cell: BaseRNNCell, output_prefix: str = "bi_"
    ) -> None:
        super().__init__([l_cell, r_cell])
        self._output_prefix = output_prefix

    @property
    def can_step(self) -> bool:
        return False

    def _step(self, name: str, inputs: Symbol, states: States) -> tuple[Symbol, States]:
        raise AssertionError("a cell that cannot step was stepped")

    def _unroll(self, inputs: Inputs, states: States, how: Unrolling) -> tuple[Steps, States]:
        """Unroll both cells; outputs have the shape (B, units of both cells)."""
        steps = split_steps(how.length, inputs, how.layout, how.prefix)
        (l_cell, l_begin), (r_cell, r_begin) = self._with_states(states)
        apart = how.named(merge=False, prefix="")
        ahead, l_end = l_cell.unroll(how.length, steps, l_begin, **apart)
        back, r_end = r_cell.unroll(how.length, _turned(steps, how), r_begin, **apart)
        pairs = list(zip(ahead, _turned(list(back), how), strict=True))
        if how.merge:
            halves = [merge_steps(half, how.layout) for half in zip(*pairs, strict=True)]
            return sym.Concat(*halves, dim=2, name=f"{self._output_prefix}out"), l_end + r_end
        outputs: list[Symbol] = []
        for t, pair in enumerate(pairs):
            with AttrScope(time_step=str(max(t, how.length - 1 - t))):
                outputs.append(sym.Concat(*pair, dim=1, name=f"{self._output_prefix}t{t}"))
        return outputs, l_end + r_end


def _turned(steps: list[Symbol], how: Unrolling) -> list[Symbol]:
    """Return the steps of each sample in reverse order, those behind its length in place."""
    if how.valid_length is None:
        return steps[::-1]
    merged = sym.SequenceReverse(
        merge_steps(steps, "TNC"), how.valid_length, use_sequence_length=True
    )
    return split_steps(how.length, merged, "TNC")
