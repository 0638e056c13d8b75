"""`import mxnet` as symgraph: what MXNet's own tests and examples import, for runs of them.

`install(folder)` makes `mxnet` and its submodules stand for symgraph's. `mxnet.test_utils` is the
checkout's own file. Parts that symgraph leaves out are placeholders, whose use raises OutOfScope
with the name of the part; `nose.tools`, which tests of that time import, is made from unittest.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import types
import unittest
from concurrent.futures import Future
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy.stats

import symgraph
from runtime.frontends.mxnet.executor import Executor
from runtime.transports.threads import cluster
from symgraph.frontend import left_out

# The first match of a module's name (without `mxnet.`) is the part that a placeholder stands for.
PARTS = (
    (r"gluon", "Gluon"),
    (r"autograd", "autograd"),
    (r"numpy|np|numpy_extension|npx|symbol\.numpy.*|symbol\._internal|_numpy.*", "numpy interface"),
    (r"(ndarray|nd|symbol|sym)\.sparse", "sparse"),
    (r"contrib\.quantization", "quantised"),
    (r"contrib\.amp", "mixed precision as amp"),
    (r"contrib", "contrib"),
    (r"image|img", "image"),
    (r"rtc|profiler|engine|executor_manager|module\.executor_group|library", "MXNet's internals"),
    (r"kvstore_server", "distributed kvstore"),
)
NAMES = {"np": "numpy", "npx": "numpy_extension"}


class OutOfScope(Exception):
    """A part that symgraph leaves out was used; the argument is its name."""


class _Placeholder(type):
    """The type of classes that stand for anything of a part: only their use is an error."""

    part: str

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise OutOfScope(cls.part)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return placeholder(cls.part)


def placeholder(part: str) -> Any:
    """Return a class that stands for anything of a part."""
    return _Placeholder("Placeholder", (), {"part": part})


class _LeftOut(types.ModuleType):
    """A module of a part that is left out."""

    def __init__(self, name: str, part: str) -> None:
        super().__init__(name)
        self.part = part
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return placeholder(self.part)


class _Mxnet(types.ModuleType):
    """The module `mxnet`: symgraph's names, and placeholders."""

    __path__: ClassVar[list[str]] = []
    __version__ = "1.9.1"

    def __getattr__(self, name: str) -> Any:
        if name in (*NAMES, *NAMES.values()) or (name in left_out.LEFT_OUT and part_of(name)):
            return importlib.import_module(f"mxnet.{NAMES.get(name, name)}")
        if name in ("base", "test_utils", "util", "contrib", "autograd", "runtime", "libinfo"):
            return importlib.import_module(f"mxnet.{name}")
        if hasattr(WRITTEN["util"], name):
            return getattr(WRITTEN["util"], name)
        return getattr(symgraph, name)


def part_of(name: str) -> str | None:
    """Return the part that a module belongs to, if it is left out."""
    for pattern, part in PARTS:
        if re.match(rf"({pattern})(\.|$)", name):
            return part
    return None


class _Finder:
    """Finds `mxnet.<name>`: written below, the checkout's, symgraph's, or a placeholder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package != "mxnet" or not name:
            return None
        if name == "test_utils":
            return importlib.util.spec_from_file_location(
                fullname, self.folder / "python" / "mxnet" / "test_utils.py"
            )
        module = WRITTEN.get(name) or _symgraphs(name)
        if module is None:
            part = part_of(name)
            if part is None:
                return None
            module = _LeftOut(fullname, part)
        return ModuleSpec(fullname, _Loader(module))


class _Loader:
    def __init__(self, module: types.ModuleType) -> None:
        self.module = module

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module is made."""


def _symgraphs(name: str) -> types.ModuleType | None:
    """Return symgraph's module of a name, with itself as MXNet's file of that name in it."""
    found: Any = symgraph
    for word in name.split("."):
        if part_of(name):
            return None
        inner = getattr(found, word, None) if hasattr(found, word) else None
        if inner is None and name.split(".")[-1] in ("ndarray", "symbol", "module", "rnn_cell"):
            inner = found
        if inner is None:
            return None
        found = inner
    if not isinstance(found, types.ModuleType):
        return None
    copy = types.ModuleType(f"mxnet.{name}")  # its own import attributes must not change
    copy.__dict__.update({k: v for k, v in vars(found).items() if not k.startswith("__")})
    copy.__getattr__ = lambda word: getattr(found, word)  # type: ignore[method-assign]
    copy.__path__ = []
    if name == "operator":  # for star imports: other tools for operators are not MXNet's
        copy.__all__ = ["CustomOp", "CustomOpProp", "register"]  # type: ignore[attr-defined]
    if name == "ndarray.ndarray":
        copy._STORAGE_TYPE_STR_TO_ID = {"default": 0, "row_sparse": 1, "csr": 2}  # type: ignore
    return copy


def _module(name: str, **names: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(names)
    return made


def _refused(part: str) -> Any:
    """Return a decorator that makes a function out of scope, which may be called first."""

    def decorate(function: Any = None, *_: Any) -> Any:
        if not callable(function):
            raise OutOfScope(part)

        @wraps(function)
        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise OutOfScope(part)

        return refuse

    return decorate


class _Features:
    """`mxnet.runtime.Features`: none of MXNet's build options."""

    def is_enabled(self, name: str) -> bool:
        return False

    def __getitem__(self, name: str) -> Any:
        return types.SimpleNamespace(enabled=False)


def _setenv(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


WRITTEN = {
    "base": _module(
        "mxnet.base",
        MXNetError=symgraph.SymgraphError,
        NotImplementedForSymbol=NotImplementedError,
        py_str=lambda text: text.decode() if isinstance(text, bytes) else text,
        string_types=(str,),
        numeric_types=(float, int, np.generic),
        integer_types=(int, np.integer),
        _as_list=lambda value: list(value) if isinstance(value, (list, tuple)) else [value],
        mx_real_t=np.float32,
        check_call=placeholder("MXNet's internals"),
        _LIB=placeholder("MXNet's internals"),
    ),
    "util": _module(
        "mxnet.util",
        use_np=_refused("numpy interface"),
        np_shape=_refused("numpy interface"),
        use_np_shape=_refused("numpy interface"),
        np_array=_refused("numpy interface"),
        is_np_array=lambda: False,
        is_np_shape=lambda: False,
        getenv=os.environ.get,
        setenv=_setenv,
        makedirs=lambda d: os.makedirs(d, exist_ok=True),
    ),
    "runtime": _module("mxnet.runtime", Features=_Features),
    "libinfo": _module("mxnet.libinfo", __version__="1.9.1"),
}


class _Caller:
    """The pool of a single rank that runs what it is given at once, in the caller's thread.

    A test makes thousands of tiny calls; on a busy machine handing one over takes longer than it.
    """

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        made: Future[Any] = Future()
        made.set_result(function(*args))
        return made

    def shutdown(self) -> None:
        """Do nothing: there is no thread."""


def _run_single_ranks_inline() -> None:
    begin, pool = cluster.ThreadCluster.__init__, cluster.ThreadPoolExecutor

    def make(self: Any, size: int, *args: Any, **kwargs: Any) -> None:
        cluster.ThreadPoolExecutor = (lambda *_, **__: _Caller()) if size == 1 else pool
        begin(self, size, *args, **kwargs)

    cluster.ThreadCluster.__init__ = make  # type: ignore[method-assign]


def _chisquare(f_obs: Any, f_exp: Any) -> tuple[Any, Any]:
    """Return Pearson's statistic, as scipy did, also where both sums differ."""
    statistic = ((f_obs - f_exp) ** 2 / f_exp).sum()
    return statistic, scipy.stats.chi2.sf(statistic, len(f_obs) - 1)


def _nose() -> types.ModuleType:
    """Return `nose.tools`: unittest's assertions under nose's names, and its decorators."""
    case = unittest.TestCase()
    tools = types.ModuleType("nose.tools")
    for name in dir(case):
        if name.startswith("assert"):
            pep8 = re.sub("([A-Z]+)", r"_\1", name).lower()
            setattr(tools, pep8, getattr(case, name))

    def raises(*errors: type[BaseException]) -> Any:
        def decorate(function: Any) -> Any:
            @wraps(function)
            def expect(*args: Any, **kwargs: Any) -> None:
                try:
                    function(*args, **kwargs)
                except errors:
                    return
                raise AssertionError(f"none of {errors} was raised")

            return expect

        return decorate

    def ok_(condition: Any, message: str = "") -> None:
        assert condition, message

    def eq_(a: Any, b: Any, message: str = "") -> None:
        assert a == b, message

    tools.__dict__.update(
        raises=raises,
        ok_=ok_,
        eq_=eq_,
        make_decorator=lambda function: wraps(function),
        nottest=lambda function: function,
        istest=lambda function: function,
    )
    return tools


def install(folder: Path) -> None:
    """Let `import mxnet` import symgraph, and `nose` what tests need of it."""
    for kind in (float, int, object, bool):  # names that numpy had then
        if kind.__name__ not in dir(np):
            setattr(np, kind.__name__, kind)
    if not hasattr(symgraph.Context, "default_ctx"):  # MXNet 1.2's current_context()
        symgraph.Context.default_ctx = symgraph.cpu()  # type: ignore[attr-defined]
    _run_single_ranks_inline()
    scipy.stats.chisquare = _chisquare
    Executor._ctx = property(lambda self: self.plan.options.default)  # type: ignore[attr-defined]
    symgraph.nd.cast_storage = symgraph.nd.NDArray.tostype  # type: ignore[attr-defined]
    sys.modules["mxnet"] = _Mxnet("mxnet")
    sys.meta_path.insert(0, _Finder(folder))  # type: ignore[arg-type]
    tools = _nose()
    sys.modules["nose"] = _module("nose", tools=tools, __path__=[], SkipTest=unittest.SkipTest)
    sys.modules["nose.tools"] = tools
