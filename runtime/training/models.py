"""The model of a config: what a function builds, or what a file of another framework holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from runtime.training.data.text import IGNORED
from runtime.training.given import network_of
from runtime.training.loss import with_loss
from symgraph.app.config import Config
from symgraph.app.data_config import TextConfig
from symgraph.app.model_config import JSON, ONNX, PT2, is_model_file
from symgraph.core.errors import ConfigError, nearest
from symgraph.core.registry import complete
from symgraph.core.types import Array, Shape, TensorType
from symgraph.frontend import init
from symgraph.frontend.infer import hinted_shape, infer_dtypes, infer_shapes
from symgraph.frontend.model import Model, load_model
from symgraph.frontend.params_file import load_params
from symgraph.frontend.sym import load
from symgraph.frontend.symbol import Symbol
from symgraph.frontend.symnode import SymNode, walk
from symgraph.interchange.onnx import import_model
from symgraph.interchange.torch import from_torch
from symgraph.passes.batching import Feed

BATCH = "N"  # in layouts


def build_model(config: Config, bucket: int | None = None, rows: int | None = None) -> Model:
    """Build a config's model with its loss.

    Args:
        config: The config.
        bucket: The length to unroll for, if there are buckets.
        rows: The samples of a batch, if they are not data.batch_size.

    Raises:
        ConfigError: The function or the file does not give the model that the config describes.
        GraphError: The file is damaged, or has operators that are not supported.
    """
    if (network := network_of(config)) is not None:
        return network.model
    model = _of_file(config) if is_model_file(config.model) else _of_function(config, bucket, rows)
    return model if config.loss is None else with_loss(model, config.loss)


def initializer_of(model: Model | None, config: Config) -> init.AnyInitializer:
    """Return what gives the first values: the model's own parameters, then random numbers."""
    drawn = init.Uniform(config.train.init_scale)
    return drawn if model is None or not model.params else init.Load(model.params, drawn)


def _of_function(config: Config, bucket: int | None, rows: int | None) -> Model:
    data = config.data
    arguments: dict[str, Any] = {}
    if isinstance(data, TextConfig):
        arguments = {"sequence_length": data.sequence_length, "vocab": data.vocab}
    if data.batch_size is not None:
        arguments["batch_size"] = data.batch_size
    if bucket is not None:
        arguments |= {"sequence_length": bucket, "ignore_label": IGNORED}
    if rows is not None:
        arguments["batch_size"] = rows
    for name in (*arguments, "dtype"):
        if name in config.args:
            section = "train" if name == "dtype" else "data"
            raise ConfigError(f"args.{name}: the model gets it from {section}.{name}; leave it out")
    return load_model(config.model, {**arguments, **config.args}, {"dtype": config.train.dtype})


# -- files -----------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """What a config says of a model file."""

    path: str
    #: The config's `args:`.
    args: Mapping[str, Any]
    #: The samples of a batch; None: as many as the file says.
    batch: int | None


class Network(NamedTuple):
    """A network as a file holds it."""

    symbol: Symbol
    #: Parameters and auxiliary states by name.
    params: Mapping[str, Array]

    @property
    def inputs(self) -> dict[str, SymNode]:
        """The variables that are no parameters."""
        nodes = walk(self.symbol.entries)
        return {n.name: n for n in nodes if n.op is None and n.name not in self.params}


def _of_file(config: Config) -> Model:
    """Read a model file, with its inputs and parameters."""
    path, data = config.model, config.data
    if isinstance(data, TextConfig) and data.buckets is not None:
        raise ConfigError(f"data.buckets: {path} has one length; buckets need a function as model")
    reader, known = READERS[Path(path).suffix.lower()]
    for name in config.args:
        if name not in known:
            raise ConfigError(f"args.{name}: not for this kind of file; {nearest(name, known)}")
    wanted = Wanted(path, config.args, data.batch_size)
    network = reader(wanted)
    feeds = _feeds(network, wanted, config.train.dtype)
    return Model(network.symbol, feeds, params=network.params)


def _onnx(wanted: Wanted) -> Network:
    symbol, args, aux = import_model(wanted.path, **wanted.args)
    network = Network(symbol, {**args, **aux})
    if wanted.batch is not None and "batch_axis" not in wanted.args:
        shapes = [shape for node in network.inputs.values() if (shape := hinted_shape(node, {}))]
        if {shape[0] for shape in shapes if 0 not in shape} - {wanted.batch}:  # fixed by the file
            symbol, args, aux = import_model(wanted.path, **wanted.args, batch_axis=0)
    return Network(symbol, {**args, **aux})


def _pt2(wanted: Wanted) -> Network:
    symbol, args, aux = from_torch(wanted.path, **wanted.args)
    return Network(symbol, {**args, **aux})


def _json(wanted: Wanted) -> Network:
    file = wanted.args.get("params")
    args, aux = ({}, {}) if file is None else load_params(file)
    return Network(load(wanted.path), {**args, **aux})


def _keywords(reader: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(reader).parameters)[1:]


# By suffix: the reader, and the keys of `args:` that it takes.
READERS: Mapping[str, tuple[Callable[[Wanted], Network], tuple[str, ...]]] = {
    ONNX: (_onnx, _keywords(import_model)),
    PT2: (_pt2, _keywords(from_torch)),
    JSON: (_json, ("shapes", "params")),
}


def _feeds(network: Network, wanted: Wanted, dtype: str) -> dict[str, Feed]:
    """Return the inputs that are fed: those with a stated shape, and the labels of losses."""
    symbol, inputs = network.symbol, network.inputs
    shapes = _stated_shapes(network, wanted)
    axes = {name: _batch_axis(shape, inputs[name]) for name, shape in shapes.items()}
    whole = {n: _with_batch(n, shape, axes[n], wanted) for n, shape in shapes.items()}
    inferred = infer_shapes(symbol, whole).variables
    for label in _labels(symbol):
        if label in inputs and label not in whole and complete(inferred[label]):
            whole[label], axes[label] = inferred[label], 0
    types = infer_dtypes(symbol, {}).variables
    own = {name: dtype if types[name] == "float32" else types[name] for name in whole}
    return {n: Feed(TensorType(shape, own[n]), axes[n]) for n, shape in whole.items()}


def _stated_shapes(network: Network, wanted: Wanted) -> dict[str, Shape]:
    """Return the shapes of inputs as the config or the file states them, 0 for the batch."""
    given, inputs = wanted.args.get("shapes") or {}, network.inputs
    for name in given:
        if name not in inputs:
            raise ConfigError(f"args.shapes: no input {name!r}; {nearest(name, inputs)}")
    names = [*inputs] if network.params else [*given]
    shapes = {n: shape for n in names if (shape := hinted_shape(inputs[n], given))}
    if not shapes:
        raise ConfigError(
            f"{wanted.path}: no input has a shape; give those of the fed ones, with 0 for the "
            "batch, such as args.shapes={data: [0, 3, 32, 32]}"
        )
    return shapes


def _batch_axis(shape: Shape, node: SymNode) -> int:
    """Return the axis that is left open, or that the layout calls the batch; else the first."""
    return shape.index(0) if 0 in shape else max(0, node.attrs.get("__layout__", "").find(BATCH))


def _with_batch(name: str, shape: Shape, axis: int, wanted: Wanted) -> Shape:
    """Return the shape of an input for a whole batch."""
    size = shape[axis] or wanted.batch
    if size is None:
        raise ConfigError(
            f"{wanted.path} leaves the batch of {name!r} open; give it: data.batch_size=8"
        )
    if wanted.batch not in (None, size):
        raise ConfigError(
            f"data.batch_size: {wanted.batch}, but {wanted.path} has batches of {size}; leave it "
            "out, or write the file with an open batch"
        )
    whole = (*shape[:axis], size, *shape[axis + 1 :])
    if 0 in whole:
        raise ConfigError(
            f"{wanted.path}: the input {name!r} has the shape {shape}; give all lengths besides "
            f"the batch: args.shapes={{{name}: {[*shape]}}}"
        )
    return whole


def _labels(symbol: Symbol) -> list[str]:
    """Return the variables that losses compare with."""
    heads = [n for n in walk(symbol.entries) if n.is_loss]
    compared = [n.inputs[n.input_names.index("label")] for n in heads if "label" in n.input_names]
    return [entry.node.name for entry in compared if entry.node.op is None]
