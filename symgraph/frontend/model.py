"""Models: a symbol together with its inputs in training; checkpoints, as in MXNet's `mx.model`."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from symgraph.core.errors import ConfigError, GraphError, SymgraphError, nearest
from symgraph.core.types import Array
from symgraph.frontend.backend import load
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
    "call_function",
    "function_path",
    "load_checkpoint",
    "load_model",
    "save_checkpoint",
    "users_code",
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
    #: First values of parameters and auxiliary states by name; others are drawn at random.
    params: Mapping[str, Array] = field(default_factory=dict, repr=False)

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


FUNCTION = re.compile(r"([^\W\d]\w*(\.[^\W\d]\w*)*|[^:]*\.py):[^\W\d]\w*")


def function_path(text: str) -> str:
    """Return the text; ValueError unless it is package.module:function or file.py:function."""
    if not FUNCTION.fullmatch(text):
        raise ValueError(f"expected package.module:function or file.py:function, got {text!r}")
    return text


def load_model(
    path: str, arguments: Mapping[str, Any], offered: Mapping[str, Any] | None = None
) -> Model:
    """Call a function that builds a Model.

    Args:
        path: `package.module:function`, which is looked for in the current folder too, or
            `file.py:function`.
        arguments: The function's arguments.
        offered: More arguments, for a function that takes them.

    Raises:
        ConfigError: There is no such function, it does not take these arguments, fails, or returns
            something else.
    """
    model = call_function("model", path, arguments, offered or {})
    if not isinstance(model, Model):
        raise ConfigError(
            f"model: {path} returns {type(model).__name__}, not a symgraph.Model: return "
            "Model(symbol, {'data': Feed(TensorType(shape, dtype), batch_axis), ...}), as "
            "examples/lstm_lm.py does"
        )
    return model


def call_function(
    key: str, path: str, arguments: Mapping[str, Any], offered: Mapping[str, Any]
) -> Any:
    """Call a function that a key of a config names; see `load_model`, which does it for `model`."""
    function = _load_function(key, path)
    with users_code(key, path):
        taken = _taken(function, offered)
        try:
            return function(**taken, **arguments)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            hint = _nearest_argument(function, arguments)
            raise ConfigError(f"{key}: {path}: {error}; {hint or 'check `args:`'}") from None


def _nearest_argument(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    """Return what an argument that a function does not take may be meant for."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of C
        return None
    unknown = next((name for name in arguments if name not in parameters), None)
    return None if unknown is None else nearest(unknown, parameters)


def _taken(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the offered arguments that a function takes by name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of C
        return {}
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(offered)
    return {name: value for name, value in offered.items() if name in parameters}


def _load_function(key: str, path: str) -> Callable[..., Any]:
    module_name, _, function_name = path.rpartition(":")
    here = os.getcwd()  # it may be gone, which is no failure of the user's code
    with users_code(key, path):
        if module_name.endswith(".py"):
            module = _module_of_file(key, os.path.join(here, module_name))
        else:
            module = _module_of_package(key, module_name, here)
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        known = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise ConfigError(
            f"{key}: {module_name} has no function {function_name!r}; "
            f"{nearest(function_name, known)}"
        )
    return function


def _module_of_package(key: str, name: str, folder: str) -> ModuleType:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        file = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
        reason = f"; {file} is found instead of a package" if file else ""
        raise ConfigError(
            f"{key}: there is no module {error.name!r} (for {name!r}){reason}"
        ) from None


def _module_of_file(key: str, file: str) -> ModuleType:
    """Import a file; its folder is searched for what it imports, after all others."""
    path = os.path.normpath(file)
    name = f"symgraph_user_file:{path}"
    if name in sys.modules:
        return sys.modules[name]
    if not os.path.isfile(path):
        raise ConfigError(f"{key}: no such file: {os.path.relpath(path)}")
    if os.path.dirname(path) not in sys.path:
        sys.path.append(os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec, "a file that ends in .py"
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def users_code(key: str, path: str) -> Iterator[None]:
    """Turn what a user's own code raises into a ConfigError that names the line of that code."""
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
            f"{key}: {path} failed at {at}: {type(error).__name__}: {error} "
            "(--traceback shows all calls)"
        ) from error


def __getattr__(name: str) -> Any:
    if name != "FeedForward":
        raise AttributeError(
            f"symgraph.model has no {name!r}; {nearest(name, [*__all__, 'FeedForward'])}"
        )
    return load(name).FeedForward
