"""Random networks: skips, shared weights, several outputs, random groups and time steps."""

from __future__ import annotations

from typing import Any

import numpy as np

import symgraph.frontend.sym as sym
from symgraph.core.context import Context, cpu
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import Symbol
from tests.helpers.pipelines import Case

GROUPS = 4


class _Maker:
    """Grows a network whose values are all (batch, width)."""

    def __init__(self, rng: np.random.Generator, batch: int) -> None:
        self.rng, self.batch = rng, batch
        self.time = np.random.default_rng(int(rng.bit_generator.state["state"]["state"] % 2**32))
        self.arrays: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.pool: list[tuple[Symbol, int]] = []
        self.weights: dict[tuple[int, int], list[Symbol]] = {}

    def scope(self) -> Any:
        """A random group, or none at all; a time step that rises as the network grows, or none."""
        group = int(self.rng.integers(GROUPS + 1))
        attrs = {"ctx_group": f"g{group}"} if group < GROUPS else {}
        step = len(self.pool) // 2 + int(self.time.integers(-1, 2))
        if step >= 0 and self.time.random() < 0.8:
            attrs["time_step"] = str(step)
        return AttrScope(**attrs)

    def feed(self, name: str, values: np.ndarray) -> Symbol:
        self.feeds[name] = values
        return sym.Variable(name)

    def parameter(self, stem: str, shape: tuple[int, ...]) -> Symbol:
        name = f"{stem}{len(self.arrays)}_weight"
        self.arrays[name] = self.rng.standard_normal(shape) / 2
        return sym.Variable(name)

    def pick(self, even: bool = False) -> tuple[Symbol, int]:
        fits = [p for p in self.pool if not even or p[1] % 2 == 0]
        return fits[self.rng.integers(len(fits))]

    def weight(self, out: int, inner: int) -> Symbol:
        """A new weight, or one that is in use already."""
        known = self.weights.setdefault((out, inner), [])
        if not known or self.rng.random() < 0.5:
            known.append(self.parameter("w", (out, inner)))
        return known[self.rng.integers(len(known))]

    def grow(self) -> None:
        x, width = self.pick()
        kind = self.rng.choice(["fc", "fc", "fc", "unary", "binary", "concat", "split", "bias"])
        with self.scope():
            if kind == "fc":
                out = int(self.rng.choice([4, 6]))
                weight = self.weight(out, width)
                made = sym.FullyConnected(x, weight=weight, num_hidden=out, no_bias=True)
                self.pool.append((made, out))
            elif kind == "unary":
                function = self.rng.choice(["tanh", "sigmoid", "square", "negative"])
                self.pool.append((getattr(sym, function)(x), width))
            elif kind == "binary":
                y = self.rng.choice([i for i, p in enumerate(self.pool) if p[1] == width])
                other = self.pool[y][0]
                made = x * other if self.rng.random() < 0.5 else x + other * 0.5
                self.pool.append((sym.tanh(made), width))
            elif kind == "concat":
                y, more = self.pick()
                self.pool.append((sym.Concat(x, y, dim=1), width + more))
            elif kind == "split":
                x, width = self.pick(even=True)
                halves = sym.SliceChannel(x, num_outputs=2, axis=1)
                self.pool += [(halves[i], width // 2) for i in range(2)]
            else:
                row = self.parameter("b", (1, width))
                self.pool.append((sym.broadcast_add(x, row), width))

    def losses(self) -> list[Symbol]:
        found = []
        for number in range(int(self.rng.integers(2, 5))):
            x, width = self.pool[-1 - number]
            with self.scope():
                found.append(self.loss(x, width, number))
        return found

    def loss(self, x: Symbol, width: int, number: int) -> Symbol:
        kind = self.rng.choice(["softmax", "mean", "sum", "regression", "each"])
        name = f"loss{number}"
        if kind == "softmax":
            labels = self.rng.integers(-1, width, self.batch).astype(np.float64)
            label = self.feed(f"label{number}", labels)
            how = str(self.rng.choice(["null", "batch", "valid"]))
            return sym.SoftmaxOutput(x, label, use_ignore=True, normalization=how, name=name)
        if kind == "mean":
            return sym.MakeLoss(sym.mean(sym.square(x)), name=name)
        if kind == "sum":
            return sym.MakeLoss(sym.sum(sym.square(x), axis=0), grad_scale=0.1, name=name)
        if kind == "regression":
            label = self.feed(f"label{number}", self.rng.standard_normal((self.batch, width)))
            return sym.LinearRegressionOutput(x, label, name=name)
        return sym.MakeLoss(sym.tanh(x), normalization="batch", name=name)


def random_case(seed: int, batch: int = 5, nodes: int = 12) -> Case:
    """A network, its data and its parameters, all from one seed, in float64."""
    rng = np.random.default_rng(seed)
    maker = _Maker(rng, batch)
    with NameManager():
        for name in ("x", "y"):
            with maker.scope():
                data = maker.feed(name, rng.standard_normal((batch, 4)))
                maker.pool.append((data, 4))
        for _ in range(nodes):
            maker.grow()
        symbol = sym.Group(maker.losses())
    used = set(symbol.list_inputs())
    return Case(
        symbol,
        {n: a for n, a in maker.feeds.items() if n in used},
        {n: a for n, a in maker.arrays.items() if n in used},
    )


def random_groups(seed: int, devices: int) -> dict[str, Context]:
    """A device for every group."""
    rng = np.random.default_rng(seed)
    return {f"g{g}": cpu(int(rng.integers(devices))) for g in range(GROUPS)}
