"""Checkpoints of recurrent networks, in which every gate has an array of its own.

A file written with one kind of cell, or by MXNet, can therefore be read with another kind that has
the same gates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from symgraph.core.types import Array
from symgraph.frontend.callback import EpochEnd
from symgraph.frontend.params_file import load_checkpoint, save_checkpoint
from symgraph.frontend.symbol import Symbol
from symgraph.rnn.cells import BaseRNNCell

Cells = BaseRNNCell | Sequence[BaseRNNCell]


def save_rnn_checkpoint(
    cells: Cells,
    prefix: str,
    epoch: int,
    symbol: Symbol,
    arg_params: Mapping[str, Any],
    aux_params: Mapping[str, Any],
) -> None:
    """Write a checkpoint with unpacked weights (`mx.rnn.save_rnn_checkpoint`).

    Files and errors are those of `sg.model.save_checkpoint`; GraphError for a missing parameter.
    """
    for cell in _innermost(cells):
        arg_params = cell.unpack_weights(arg_params)
    save_checkpoint(prefix, epoch, symbol, arg_params, aux_params)


def load_rnn_checkpoint(
    cells: Cells, prefix: str, epoch: int
) -> tuple[Symbol, dict[str, Array], dict[str, Array]]:
    """Read a checkpoint and pack its weights for these cells (`mx.rnn.load_rnn_checkpoint`).

    Returns (symbol, parameters, auxiliary states). Errors are those of `sg.model.load_checkpoint`;
    GraphError for a missing parameter.
    """
    symbol, arg_params, aux_params = load_checkpoint(prefix, epoch)
    for cell in _innermost(cells):
        arg_params = cell.pack_weights(arg_params)
    return symbol, arg_params, aux_params


def do_rnn_checkpoint(cells: Cells, prefix: str, period: int = 1) -> EpochEnd:
    """Return an epoch callback that saves every `period` epochs (`mx.rnn.do_rnn_checkpoint`)."""

    def save(
        epoch: int, symbol: Symbol, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any]
    ) -> None:
        if (epoch + 1) % max(1, period) == 0:
            save_rnn_checkpoint(cells, prefix, epoch + 1, symbol, arg_params, aux_params)

    return save


def _innermost(cells: Cells) -> list[BaseRNNCell]:
    """List the innermost cells, whose parameters are in networks.

    A fused cell has a stack of them.
    """
    sequence = [cells] if isinstance(cells, BaseRNNCell) else list(cells)
    return [leaf for cell in sequence for leaf in cell.leaves]
