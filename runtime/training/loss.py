"""The losses of networks: those that a config adds, and the figures by which all are reported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from runtime.engine.divergence import STOP
from symgraph.app.model_config import LossConfig
from symgraph.core.errors import ConfigError, RunError, nearest
from symgraph.core.tags import canonical
from symgraph.core.types import Shape, TensorType
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.model import Model
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import Entry, walk
from symgraph.passes.batching import Feed, batch_size

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
        if entry.node.is_loss
    ]


def _label(entry: Entry, model: Model) -> str | None:
    names = entry.node.input_names
    if "label" not in names:
        return None
    variables = walk([entry.node.inputs[names.index("label")]])
    fed = [node.name for node in variables if node.op is None and node.name in model.feeds]
    return fed[0] if len(fed) == 1 else None


def labels_of(model: Model) -> frozenset[str]:
    """Return the inputs that only losses and figures read: what is predicted does not need them."""
    needed: set[str] = set()
    ahead = [entry.node for entry in model.symbol.entries if _operator(entry) != NLL]
    seen = {id(node) for node in ahead}
    while ahead:
        node = ahead.pop()
        if node.op is None:
            needed.add(node.name)
        for name, entry in zip_longest(node.input_names, node.inputs):
            label = name == "label" and node.is_loss
            if not label and id(entry.node) not in seen:
                seen.add(id(entry.node))
                ahead.append(entry.node)
    return frozenset(model.data) - needed


def reported(model: Model) -> tuple[Loss, ...]:
    """Return the names of the figures of losses that a model reports by itself."""
    entries, names = model.symbol.entries, model.symbol.list_outputs()
    return tuple(
        Loss(names[i], names[entries.index(Entry(entry.node, 1))])
        for i, entry in enumerate(entries)
        if _operator(entry) == NLL and entry.port == 0 and Entry(entry.node, 1) in entries
    )


def with_figures(model: Model) -> tuple[Model, tuple[Loss, ...]]:
    """Return a model that reports its losses as figures, and the names of those figures.

    A model that reports nll_stats is returned as it is; to others, figures of the losses among
    their outputs are added, behind all outputs: the cross entropy of SoftmaxOutput and
    LogisticRegressionOutput, the mean squared and absolute errors of the other regressions, the
    mean hinge loss of SVMOutput, and the mean of MakeLoss.
    """
    entries, names = model.symbol.entries, model.symbol.list_outputs()
    if known := reported(model):
        return model, known
    shapes = {name: feed.type.shape for name, feed in model.feeds.items()}
    sizes = [math.prod(shape) for shape in model.symbol.infer_shape(**shapes)[1]]
    outputs, losses = list(model.symbol), []
    for head in heads(model):
        if sizes[head.output] == 1 and head.label is None:
            losses.append(Loss(names[head.output], None))
            continue
        entry = entries[head.output]
        with AttrScope(**_places(entry)):
            figures = _figures_of(entry, shapes)(outputs[head.output], entry.node)
        outputs += figures
        losses.append(Loss(*[n for figure in figures for n in figure.list_outputs()]))
    return replace(model, symbol=sym.Group(outputs)), tuple(losses)


def _operator(entry: Entry) -> str:
    return entry.node.op.name if entry.node.op is not None else ""


def _figures_of(entry: Entry, shapes: Mapping[str, Shape]) -> Callable[[Symbol, Any], list[Symbol]]:
    """Return what makes the figures of a loss; a label of the output's shape is probabilities."""
    if _operator(entry) == "SoftmaxOutput":
        both = sym.Group([Symbol([entry]), Symbol([entry.node.inputs[1]])])
        fed = {name: shape for name, shape in shapes.items() if name in both.list_inputs()}
        output, label = both.infer_shape(**fed)[1]
        if output == label:
            return _soft_labels
    return FIGURES[_operator(entry)]


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


def _soft_labels(output: Symbol, node: Any) -> list[Symbol]:
    """Return the cross entropy with a probability for each class, and the number of labels."""
    axis = 1 if node.params["multi_output"] else -1
    prob = sym.Cast(sym.maximum(output, TINY), dtype="float64")
    label = sym.Cast(Symbol([node.inputs[1]]), dtype="float64")
    return _mean(-sym.sum(label * sym.log(prob), axis=axis), node.name)


def _hinge(output: Symbol, node: Any) -> list[Symbol]:
    """Return the sum of SVMOutput's losses, and the number of samples."""
    margin, label = node.params["margin"], Symbol([node.inputs[1]])
    scores = sym.Cast(output, dtype="float64")
    right = sym.pick(scores, label)
    losses = [sym.relu(margin + x) for x in (scores, right, -right)]
    if not node.params["use_linear"]:
        losses = [sym.square(loss) for loss in losses]
    every, as_wrong, as_right = losses
    total = sym.sum(every, axis=-1) - as_wrong + as_right
    return _mean(total * node.params["regularization_coefficient"], node.name)


FIGURES: Mapping[str, Callable[[Symbol, Any], list[Symbol]]] = {
    "SoftmaxOutput": _softmax,
    "LinearRegressionOutput": _of_pairs(lambda p, label: sym.square(p - label)),
    "MAERegressionOutput": _of_pairs(lambda p, label: sym.abs(p - label)),
    "LogisticRegressionOutput": _of_pairs(_cross_entropy),
    "SVMOutput": _hinge,
    "MakeLoss": lambda output, node: _mean(sym.Cast(output, dtype="float64"), node.name),
}


def with_loss(model: Model, loss: LossConfig) -> Model:
    """Return a model that ends in a loss of one of its outputs, as the config's `loss:` says.

    Raises ConfigError for an output that the network does not have, or that does not fit.
    """
    output = Symbol([_before(_output(model.symbol, loss.output), ENDS.get(loss.kind, ()))])
    shape, dtype = _type_of(output, model)
    size, label = batch_size(model.feeds), _variable(model.symbol, loss.label)
    feeds = dict(model.feeds)
    with AttrScope(**_places(output.entries[0])):
        if loss.kind == "output":
            head = _objective(output, shape, size)
        elif loss.kind == "softmax_cross_entropy":
            head = _classes(output, label, shape, loss)
            shape = (shape[0], *shape[2:]) if loss.axis == 1 else shape[:-1]
        else:
            head = REGRESSIONS[loss.kind](output, label, grad_scale=1 / size, name="loss")
    if loss.kind != "output":
        feeds.setdefault(
            loss.label, Feed(TensorType(shape, dtype), shape.index(size) if size in shape else 0)
        )
    kept = {name for state in model.states.items() for name in state}
    states = [each for each in model.symbol if each.list_outputs()[0] in kept]
    symbol = sym.Group([head, *states])
    read = set(symbol.list_inputs())
    return replace(model, symbol=symbol, feeds={n: f for n, f in feeds.items() if n in read})


# What a network may end in that becomes part of the loss.
ENDS: Mapping[str, tuple[str, ...]] = {
    "softmax_cross_entropy": ("softmax", "log_softmax", "SoftmaxActivation"),
    "logistic": ("sigmoid",),
}
REGRESSIONS: Mapping[str, Callable[..., Symbol]] = {
    "logistic": sym.LogisticRegressionOutput,
    "squared_error": sym.LinearRegressionOutput,
    "absolute_error": sym.MAERegressionOutput,
}


def _output(symbol: Symbol, name: str | None) -> Entry:
    """Return the output of a name, which may lack its ending `_output`; without one, the only."""
    names = symbol.list_outputs()
    if name is None and len(names) > 1:
        raise ConfigError(f"loss.output: the network has several outputs: {', '.join(names)}")
    if name is None:
        return symbol.entries[0]
    for spelt in (name, f"{name}_output"):
        if spelt in names:
            return symbol.entries[names.index(spelt)]
    raise ConfigError(f"loss.output: no output {name!r}; {nearest(name, names)}")


def _before(entry: Entry, ends: Sequence[str]) -> Entry:
    """Return the input of the operators that become part of the loss, or of copies of it."""
    while _operator(entry) in (*ends, "identity") and entry.node.op is not None:
        ends = ends if _operator(entry) == "identity" else ()
        entry = entry.node.inputs[0]
    return entry


def _type_of(output: Symbol, model: Model) -> tuple[Shape, str]:
    """Return the shape and the dtype of an output."""
    read = set(output.list_inputs())
    types = {name: feed.type for name, feed in model.feeds.items() if name in read}
    shapes = output.infer_shape(**{name: type_.shape for name, type_ in types.items()})[1]
    dtypes = output.infer_type(**{name: type_.dtype for name, type_ in types.items()})[1]
    return shapes[0], dtypes[0].name


def _classes(x: Symbol, label: Symbol, shape: Shape, loss: LossConfig) -> Symbol:
    """Return the softmax of an output with its loss."""
    if len(shape) < 2:
        raise ConfigError(f"loss.kind: an output of the shape {shape} has no axis of classes")
    options: dict[str, Any] = {"normalization": "batch", "name": "loss"}
    if loss.ignore_label is not None:
        options |= {"use_ignore": True, "ignore_label": loss.ignore_label}
    if len(shape) > 2 or loss.ignore_label is not None:
        options["normalization"] = "valid"
    if len(shape) > 2 and loss.axis == 1:
        return sym.SoftmaxOutput(x, label, multi_output=True, **options)
    if len(shape) > 2:
        x, label = sym.Reshape(x, shape=(-1, shape[-1])), sym.Reshape(label, shape=(-1,))
    return sym.SoftmaxOutput(x, label, **options)


def _objective(x: Symbol, shape: Shape, size: int) -> Symbol:
    """Return an output that is a loss as a head: of each sample, or their mean."""
    if math.prod(shape) > 1:
        return sym.MakeLoss(x, normalization="batch", name="loss")
    return sym.MakeLoss(x * size, grad_scale=1 / size, name="loss")  # figures are sums


def _variable(symbol: Symbol, name: str) -> Symbol:
    """Return the input of a name, or a new one."""
    for node in walk(symbol.entries):
        if node.op is None and node.name == name:
            return Symbol([Entry(node)])
    return sym.Variable(name)


def _places(entry: Entry) -> dict[str, str]:
    """Return the attributes that say where an output is computed."""
    tags = canonical(entry.node.attrs)
    return {key: tags[key] for key in PLACES if key in tags}


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
