"""Intermediate values: every pass of a network once more, with the outputs of all nodes shown.

What a plan computes has other nodes than the symbol: some are merged, others are never stored. So a
second network, of the symbol's internals, runs on copies of the parameters, with the same random
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from runtime.backends.device.arrays import on_host
from runtime.frontends.mxnet.bound_network import BoundNetwork, PlannedNetwork
from runtime.frontends.mxnet.parameter_store import ParameterStore, Watch
from runtime.planning.options import Options
from runtime.transports import ThreadCluster
from symgraph.core.types import Array
from symgraph.frontend.ndarray import viewed
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import Entry, SymNode, walk

Callback = Callable[[str, Array], None]
Active = Callable[[], bool]


def always() -> bool:
    """Return that every pass is shown."""
    return True


class InternalsWatch(Watch):
    """Shows the values of all nodes of each pass to a function, before the pass runs."""

    def __init__(self, callback: Callback, active: Active, *, inputs: bool) -> None:
        """Show passes while `active` says so; inputs: also what each node reads."""
        self._callback, self._active, self._inputs = callback, active, inputs
        self._last: tuple[BoundNetwork, BoundNetwork] | None = None

    @property
    def active(self) -> bool:
        """See Watch."""
        return self._active()

    def look(
        self, network: Any, feeds: Mapping[str, Array], train: bool, key: tuple[int, int]
    ) -> None:
        """See Watch."""
        self.fed = dict(feeds)
        if not self.active:
            return
        internals = self._internals(network)
        arrays = internals.store.arrays
        for name, array in network.store.copies(arrays).items():
            arrays[name][...] = on_host(array)
        seed, step = key
        internals.reader.forward(feeds, train=train, seed=seed, step=step)
        entries, outputs = internals.symbol.entries, internals.reader.outputs()
        values = dict(zip(entries, outputs, strict=True))
        for node, found in groupby(values, lambda entry: entry.node):
            if self._inputs:
                self._show_inputs(node, {**arrays, **feeds}, values)
            for name, entry in zip(node.outputs, found, strict=True):
                self._callback(name, viewed(values[entry]))

    def _show_inputs(
        self, node: SymNode, given: Mapping[str, Array], values: Mapping[Entry, Array]
    ) -> None:
        """Show what a node reads, as `<node>_<input>`, and a variable by its own name as well."""
        for entry, word in zip(node.inputs, node.input_names, strict=True):
            variable = entry.node.op is None
            value = viewed(np.array(given[entry.node.name] if variable else values[entry]))
            if variable:
                self._callback(entry.node.name, value)
            self._callback(f"{node.name}_{word}", value)

    def _internals(self, network: BoundNetwork) -> BoundNetwork:
        """The network of the internals of the one that ran last, planned when it is new."""
        if self._last is None or self._last[0] is not network:
            self.close()
            self._last = network, _internals_of(network)
        return self._last[1]

    def close(self) -> None:
        """End the threads of the second network."""
        if self._last is not None:
            self._last[1].store.cluster.close()
            self._last = None


def _internals_of(network: BoundNetwork) -> BoundNetwork:
    """Plan all outputs of all nodes of a network, on the host, without gradients."""
    entries = network.symbol.get_internals().entries
    symbol = Symbol([entry for entry in entries if entry.node.op is not None])
    request = replace(network.network.request, requests={}, trains=False)
    options = Options(precision=network.plan.options.precision)
    store = ParameterStore(ThreadCluster(1), trains=False)
    planned = PlannedNetwork(symbol, request, options)
    known = network.store.arrays
    store.use(
        {n: np.zeros(known[n].shape, known[n].dtype.name) for n in planned.training.parameters}, {}
    )
    return BoundNetwork(planned, store)


def gradient_names(symbol: Symbol) -> dict[str, str]:
    """Argument -> the name of its gradient in MXNet's monitors, `<node>_backward_<input>`.

    The node is the first one that reads it.
    """
    names: dict[str, str] = {}
    for node in walk(symbol.entries):
        for entry, arg in zip(node.inputs, node.input_names, strict=True):
            if entry.node.op is None:
                names.setdefault(entry.node.name, f"{node.name}_backward_{arg}")
    return names
