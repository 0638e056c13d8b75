"""Unrolled LSTM stacks for tests, one group a layer: `layer0`, `layer1`, ... and `head`."""

from __future__ import annotations

import numpy as np

import symgraph as sg
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.name import NameManager
from tests.helpers.pipelines import Case


def lstm_case(layers: int, steps: int, batch: int = 4, hidden: int = 3, seed: int = 0) -> Case:
    """Layers of `hidden` units over (batch, steps, hidden) data in float64, and a regression."""
    rng = np.random.default_rng(seed)
    with NameManager():
        with AttrScope(ctx_group="layer0"):
            x = sym.Variable("data")
        for layer in range(layers):
            with AttrScope(ctx_group=f"layer{layer}"):
                cell = sg.rnn.LSTMCell(hidden, prefix=f"l{layer}_")
                x, _ = cell.unroll(steps, x, merge_outputs=False)
        with AttrScope(ctx_group="head"):
            label = sym.Variable("label")
            out = sym.LinearRegressionOutput(sym.add_n(*x), label, name="loss")
    feeds = {
        "data": rng.standard_normal((batch, steps, hidden)),
        "label": rng.standard_normal((batch, hidden)),
    }
    shapes, _, _ = out.infer_shape(**{n: a.shape for n, a in feeds.items()})
    arrays = {
        name: rng.standard_normal(shape) / 2
        for name, shape in zip(out.list_arguments(), shapes, strict=True)
        if name not in feeds
    }
    return Case(out, feeds, arrays)
