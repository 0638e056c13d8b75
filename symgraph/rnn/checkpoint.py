"""Checkpoints of recurrent networks, in which every gate has an array of its own.

So a file that was written with one kind of cell, or by MXNet, is read with another kind of the
same gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from symgraph.core.types import Array
from symgraph.frontend.params_file import load_checkpoint, save_checkpoint
from symgraph.frontend.symbol import Symbol
from symgraph.rnn.cells import BaseRNNCell

Cells = BaseRNNCell | Sequence[BaseRNNCell]
Epoch = Callable[[int, Symbol, Mapping[str, Any], Mapping[str, Any]], None]


def save_rnn_checkpoint(
    cells: Cells,
    prefix: str,
    epoch: int,
    symbol: Symbol,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
) -> None:
    """`save_checkpoint` with unpacked weights (`mx.rnn.save_rnn_checkpoint`)."""
    for cell in _in_networks(cells):
        arg_params = cell.unpack_weights(arg_params)
    save_checkpoint(prefix, epoch, symbol, arg_params, aux_params)


def load_rnn_checkpoint(
    cells: Cells, prefix: str, epoch: int
) -> tuple[Symbol, dict[str, Array], dict[str, Array]]:
    """`load_checkpoint`, its weights packed for these cells (`mx.rnn.load_rnn_checkpoint`)."""
    symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
    for cell in _in_networks(cells):
        arg_params = cell.pack_weights(arg_params)
    return symbol, arg_params, aux_params


def do_rnn_checkpoint(cells: Cells, prefix: str, period: int = 1) -> Epoch:
    """An `epoch_end_callback` that saves every `period` epochs (`mx.rnn.do_rnn_checkpoint`)."""

    def save(
        epoch: int, symbol: Symbol, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]
    ) -> None:
        if (epoch + 1) % max(1, period) == 0:
            save_rnn_checkpoint(cells, prefix, epoch + 1, symbol, arg_params, aux_params)

    return save


def _in_networks(cells: Cells) -> list[BaseRNNCell]:
    """The cells whose parameters networks have: of a fused cell those of its stack."""
    listed = [cells] if isinstance(cells, BaseRNNCell) else list(cells)
    return [leaf for cell in listed for leaf in cell.leaves]
