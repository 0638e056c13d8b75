"""Runs of the MPI tests on cards: the same cases, with gpu(i) for every cpu(i)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from runtime.backends.device.arrays import on_host
from runtime.planning.options import Options
from runtime.transports import Cluster
from symgraph.core.context import Context, gpu
from tests.mpi.cases import Arrays, Run, runs

NAMES = (
    "random0-zb-h1-m",
    "segments-1f1b",
    "collectives-network-2",
    "collectives-tree-4",
    "G14-int64",
)


def chosen(devices: int) -> dict[str, Callable[[Cluster], dict[int, Arrays]]]:
    """Some of all runs on that many cards, by name."""
    return {
        name: lambda cluster, run=run: _fetched(run, cluster, devices)
        for name, run in runs(devices).items()
        if name.startswith(NAMES)
    }


def _fetched(run: Run, cluster: Cluster, devices: int) -> dict[int, Arrays]:
    found = run._replace(options=on_cards(run.options, devices))(cluster)
    return {
        rank: {name: np.asarray(on_host(array)) for name, array in arrays.items()}
        for rank, arrays in found.items()
    }


def on_cards(options: Options, devices: int) -> Options:
    """With gpu(i) for cpu(i)."""

    def card(context: Context) -> Context:
        return gpu(context.index)

    groups = {name: card(given) for name, given in (options.groups or {}).items()}
    everything = tuple(map(card, options.devices))
    return replace(options, groups=groups, default=card(options.default), devices=everything)
