"""The loss of a network as figures: sums over the samples that ranks add up, and their counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.engine.divergence import STOP
from symgraph.core.errors import RunError
from symgraph.core.tags import canonical
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.model import Model
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import Entry, walk

NLL = "_nll"  # nll_stats
PLACES = ("ctx_group", "shard")  # attributes that say where an operator runs
TINY = 1e-30  # a probability below it counts as it


@dataclass(frozen=True)
class Loss:
    """The names of the figures of a loss, which is their quotient."""

    #: The sum.
    total: str
    #: How many elements it is over; None: as many as there are samples.
    count: str | None


@dataclass(frozen=True)
class Head:
    """An output of a network that starts its backward pass."""

    #: The position among the outputs.
    output: int
    #: The fed variable that it is compared with, if there is one.
    label: str | None


def heads(model: Model) -> list[Head]:
    """Return the outputs of a model that are losses."""
    return [
        Head(i, _label(entry, model))
        for i, entry in enumerate(model.symbol.entries)
        if entry.node.op is not None and entry.node.op.loss
    ]


def _label(entry: Entry, model: Model) -> str | None:
    names = entry.node.input_names
    if "label" not in names:
        return None
    variables = walk([entry.node.inputs[names.index("label")]])
    fed = [node.name for node in variables if node.op is None and node.name in model.feeds]
    return fed[0] if len(fed) == 1 else None


def with_figures(model: Model) -> tuple[Model, tuple[Loss, ...]]:
    """Return a model that reports its losses as figures, and the names of those figures.

    A model that reports nll_stats is returned as it is; to others, figures of the losses among
    their outputs are added, behind all outputs: the cross entropy of SoftmaxOutput and
    LogisticRegressionOutput, the mean squared and absolute errors of the other regressions, and
    the mean of MakeLoss.
    """
    entries, names = model.symbol.entries, model.symbol.list_outputs()
    reported = tuple(
        Loss(names[i], names[entries.index(Entry(entry.node, 1))])
        for i, entry in enumerate(entries)
        if _operator(entry) == NLL and entry.port == 0 and Entry(entry.node, 1) in entries
    )
    if reported:
        return model, reported
    shapes = {name: feed.type.shape for name, feed in model.feeds.items()}
    sizes = [math.prod(shape) for shape in model.symbol.infer_shape(**shapes)[1]]
    outputs, losses = list(model.symbol), []
    for head in heads(model):
        if sizes[head.output] == 1 and head.label is None:
            losses.append(Loss(names[head.output], None))
            continue
        entry = entries[head.output]
        tags = canonical(entry.node.attrs)
        with AttrScope(**{key: tags[key] for key in PLACES if key in tags}):
            figures = FIGURES[_operator(entry)](outputs[head.output], entry.node)
        outputs += figures
        losses.append(Loss(*[n for figure in figures for n in figure.list_outputs()]))
    return replace(model, symbol=sym.Group(outputs)), tuple(losses)


def _operator(entry: Entry) -> str:
    return entry.node.op.name if entry.node.op is not None else ""


def _softmax(output: Symbol, node: Any) -> list[Symbol]:
    label = Symbol([node.inputs[1]])
    if node.params["multi_output"]:  # the classes are on axis 1
        output = sym.SwapAxis(sym.Reshape(output, shape=(0, 0, -1)), dim1=1, dim2=2)
        label = sym.Reshape(label, shape=(0, -1))
    ignore = {key: node.params[key] for key in ("use_ignore", "ignore_label")}
    return [sym.nll_stats(output, label, name=f"{node.name}_loss", **ignore)]


def _of_pairs(measure: Callable[[Symbol, Symbol], Symbol]) -> Callable[[Symbol, Any], list[Symbol]]:
    def figures(output: Symbol, node: Any) -> list[Symbol]:
        pair = (output, Symbol([node.inputs[1]]))
        flat = [sym.Cast(sym.Reshape(x, shape=(-1,)), dtype="float64") for x in pair]
        return _mean(measure(*flat), node.name)

    return figures


def _mean(values: Symbol, name: str) -> list[Symbol]:
    """Return the sum and the number of values."""
    return [
        sym.BlockGrad(sym.sum(values), name=f"{name}_loss"),
        sym.BlockGrad(sym.sum(sym.ones_like(values)), name=f"{name}_loss_count"),
    ]


def _cross_entropy(p: Symbol, label: Symbol) -> Symbol:
    right, wrong = sym.log(sym.maximum(p, TINY)), sym.log(sym.maximum(1 - p, TINY))
    return -(label * right + (1 - label) * wrong)


FIGURES: Mapping[str, Callable[[Symbol, Any], list[Symbol]]] = {
    "SoftmaxOutput": _softmax,
    "LinearRegressionOutput": _of_pairs(lambda p, label: sym.square(p - label)),
    "MAERegressionOutput": _of_pairs(lambda p, label: sym.abs(p - label)),
    "LogisticRegressionOutput": _of_pairs(_cross_entropy),
    "MakeLoss": lambda output, node: _mean(sym.Cast(output, dtype="float64"), node.name),
}


def mean_loss(
    figures: Mapping[str, float], losses: Sequence[Loss], samples: int, on_nan: str = STOP
) -> float:
    """Return the mean loss, the sum of those of several heads; NaN without any head.

    Args:
        figures: Sums by name.
        losses: The names of each loss's figures.
        samples: The number of samples that the sums are over.
        on_nan: Raise RunError for a loss that is not finite if it says so.

    Raises:
        RunError: Nothing counts, or see `on_nan`.
    """
    if not losses:
        return math.nan
    found = 0.0
    for loss in losses:
        count = samples if loss.count is None else figures[loss.count]
        if not count:
            raise RunError("no labels to predict: all of them are ignored, or there are none")
        found += figures[loss.total] / count
    if on_nan == STOP and not math.isfinite(found):
        raise RunError(f"the loss is {found}: training has diverged; lower the learning rate")
    return found
