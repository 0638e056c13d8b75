"""Models: a symbol together with its inputs in training; checkpoints, as in MXNet's `mx.model`."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from symgraph.core.errors import ConfigError, GraphError, SymgraphError, nearest
from symgraph.frontend.callback import BatchEndParam
from symgraph.frontend.name import NameManager
from symgraph.frontend.params_file import load_checkpoint, save_checkpoint
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed

__all__ = [
    "BatchEndParam",
    "Model",
    "SymGen",
    "bucket_network",
    "load_checkpoint",
    "load_model",
    "save_checkpoint",
]


@dataclass(frozen=True)
class Model:
    """A network to train: the return value of a config's `model:` function.

    Raises GraphError for names that the symbol does not have.
    """

    #: The network. Its outputs are losses, figures to report (sums over the batch with one element,
    #: such as `nll_stats`) and next states.
    symbol: Symbol
    #: The fed variables by name: their types for a whole batch, and their batch axes.
    feeds: Mapping[str, Feed]
    #: Fed variables that start at zero and then take the value of an output: variable -> output
    #: (truncated back-propagation through time).
    states: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outputs, inputs = self.symbol.list_outputs(), self.symbol.list_inputs()
        for name in (*self.feeds, *self.states):
            if name not in inputs:
                raise GraphError(f"model: no input {name!r}; {nearest(name, inputs)}")
        for name, output in self.states.items():
            if output not in outputs:
                raise GraphError(
                    f"model: state {name!r} takes the value of {output!r}, which is not an output; "
                    f"{nearest(output, outputs)}"
                )
            if name not in self.feeds:
                raise GraphError(f"model: state {name!r} is missing from feeds")

    @property
    def data(self) -> list[str]:
        """The fed variables that are not states."""
        return [name for name in self.feeds if name not in self.states]


# (symbol, data_names, label_names)
SymbolInputs = tuple[Symbol, Sequence[str], Sequence[str] | None]
# Bucket key -> its network, as for MXNet's BucketingModule.
SymGen = Callable[[Any], SymbolInputs]


def bucket_network(sym_gen: SymGen, key: Any) -> SymbolInputs:
    """Generate the network of a bucket; TypeError for anything else.

    Automatic names begin anew, so that they do not depend on which buckets were generated before.
    """
    with NameManager():
        network = sym_gen(key)
    if not isinstance(network, tuple | list) or len(network) != 3:
        raise TypeError(
            f"sym_gen({key!r}) gives {network!r}, but must give (symbol, data_names, label_names)"
        )
    return network


def load_model(path: str, **kwargs: Any) -> Model:
    """Call the function `package.module:function` with these arguments and return its Model.

    The current folder is searched too. Raises ConfigError if there is no such module or function,
    if it does not take these arguments, or if it returns something else.
    """
    module_name, _, function_name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with _of_the_user(path):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise
            file = getattr(sys.modules.get(module_name.partition(".")[0]), "__file__", None)
            reason = f"; {file} is found instead of a package" if file else ""
            raise ConfigError(
                f"model: there is no module {error.name!r} (for {path!r}){reason}"
            ) from None
    build: Callable[..., Any] | None = getattr(module, function_name, None)
    if build is None:
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ConfigError(
            f"model: {module_name} has no function {function_name!r}; "
            f"{nearest(function_name, known)}"
        )
    with _of_the_user(path):
        try:
            model = build(**kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            raise ConfigError(f"model: {path}: {error}; check `args:`") from None
    if not isinstance(model, Model):
        raise ConfigError(
            f"model: {path} returns {type(model).__name__}, not a symgraph.Model: return "
            "Model(symbol, {'data': Feed(TensorType(shape, dtype), batch_axis), ...}), as "
            "examples/lstm_lm.py does"
        )
    return model


@contextmanager
def _of_the_user(path: str) -> Iterator[None]:
    """Turn what a model's own code raises into a ConfigError that names the line of that code."""
    try:
        yield
    except (SymgraphError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{last.filename}, line {last.lineno}"
        if isinstance(error, SyntaxError):
            at = f"{error.filename}, line {error.lineno}"
        raise ConfigError(
            f"model: {path} failed at {at}: {type(error).__name__}: {error} "
            "(--traceback shows all calls)"
        ) from error
