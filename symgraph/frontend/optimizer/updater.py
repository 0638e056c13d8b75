"""An optimizer with the states of all weights that it has updated (MXNet's Updater)."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np

from symgraph.core.errors import ConfigError
from symgraph.frontend.optimizer.base import Optimizer, _leaves


class Updater:
    """Update weights by index, with states that are made at the first update (MXNet).

    `updater(index, grad, weight)`, or with lists of these.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        #: The states by index.
        self.states: dict[Any, Any] = {}
        self._loaded: dict[str, list[Any]] = {}

    def __call__(self, index: Any, grad: Any, weight: Any) -> None:
        if isinstance(index, (list, tuple)):
            for one in zip(index, grad, weight, strict=True):
                self(*one)
            return
        if index not in self.states:
            state = self.optimizer.create_state_multi_precision(index, weight)
            arrays = self._loaded.pop(repr(index), None)
            for target, array in zip(_leaves(state), arrays or (), strict=arrays is not None):
                target[:] = array
            self.states[index] = state
        self.optimizer.update_multi_precision(index, weight, grad, self.states[index])

    def get_states(self, dump_optimizer: bool = False) -> bytes:
        """Return all states as bytes (an .npz file), for `set_states`.

        Raises ConfigError for dump_optimizer=True: settings are not written.
        """
        if dump_optimizer:
            raise ConfigError("get_states: an optimizer's settings are not written, only states")
        arrays: dict[str, Any] = {}
        forms: dict[str, int] = {}
        for index, state in self.states.items():
            leaves = [np.asarray(leaf) for leaf in _leaves(state)]
            forms[repr(index)] = len(leaves)
            arrays |= {f"{index!r}/{at}": leaf for at, leaf in enumerate(leaves)}
        file = io.BytesIO()
        np.savez(file, forms=np.array(json.dumps(forms)), **arrays)
        return file.getvalue()

    def set_states(self, states: bytes) -> None:
        """Continue from what `get_states` returned."""
        with np.load(io.BytesIO(states), allow_pickle=False) as file:
            forms = json.loads(str(file["forms"]))
            self._loaded = {i: [file[f"{i}/{at}"] for at in range(n)] for i, n in forms.items()}
        self.states = {}


def get_updater(optimizer: Optimizer) -> Updater:
    """Return an `Updater` of the optimizer (`mx.optimizer.get_updater`)."""
    return Updater(optimizer)
