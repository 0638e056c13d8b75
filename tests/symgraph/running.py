"""Helpers for tests that run symbols on the reference interpreter with made-up numbers."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from symgraph.core.graph import Graph
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.types import Array
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import Symbol


def random_feeds(graph: Graph) -> dict[str, Array]:
    """A value for every variable, which depends on its name and shape alone."""
    feeds = {}
    for node in graph.variables:
        rng = np.random.default_rng(zlib.crc32(node.name.encode()))
        shape, dtype = node.types[0]
        feeds[node.name] = (rng.standard_normal(shape) / 2).astype(dtype)
    return feeds


def run(symbol: Symbol, env: Env | None = None, **feeds: Any) -> list[Array]:
    """The outputs for these feeds and random values of all other variables."""
    arrays = {name: np.asarray(a) for name, a in feeds.items()}
    shapes = {name: a.shape for name, a in arrays.items()}
    graph = lower(symbol, shapes, {name: str(a.dtype) for name, a in arrays.items()})
    return evaluate(graph, random_feeds(graph) | arrays, env or Env())


def mlp() -> Symbol:
    """data -> fc1 (1000) -> relu1 -> fc2 (10)."""
    data = sym.Variable("data")
    hidden = sym.FullyConnected(data, num_hidden=1000, name="fc1")
    hidden = sym.Activation(hidden, act_type="relu", name="relu1")
    return sym.FullyConnected(hidden, num_hidden=10, name="fc2")
