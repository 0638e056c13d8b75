"""Compiled functions: numba, with a cache on disk that is found also where no folder is writable.

numba caches beside the source, below the user's cache folder, or in NUMBA_CACHE_DIR. In a container
the first two are often read-only; then a private folder below the system's temporary one is used.
"""

from __future__ import annotations

import logging
import os
import resource
import stat
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from symgraph.core.errors import ConfigError
from symgraph.core.types import Array

CHOOSE = "set NUMBA_CACHE_DIR to a folder that is writable, and stays"
LEAST_ADDRESSES = 768 << 20  # bytes: with fewer, LLVM aborts or waits for ever
_Function = Callable[..., Any]


def _check_environment() -> None:
    """Raise ConfigError for settings with which numba fails, hangs or ends the process."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= limit < LEAST_ADDRESSES:
        raise ConfigError(
            f"`ulimit -v` allows {limit >> 10} KiB of addresses, but compiled kernels need at "
            f"least {LEAST_ADDRESSES >> 10}: raise it"
        )
    threads = os.environ.get("NUMBA_NUM_THREADS", "1")
    if not (threads.isdecimal() and int(threads) > 0):
        raise ConfigError(f"NUMBA_NUM_THREADS={threads} is not a number of 1 or more: unset it")
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ConfigError("NUMBA_DISABLE_JIT is set, but kernels work only compiled: unset it")


_check_environment()
import numba  # noqa: E402  (it fails if the environment is not as it should be)

_NUMBA_LOG = logging.getLogger("numba")
if _NUMBA_LOG.level == logging.NOTSET:  # else a root logger at DEBUG gets each kernel's statements
    _NUMBA_LOG.setLevel(logging.WARNING)


def compiled(**options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles at the first call, with a cache on disk if there can be one.

    Args:
        options: those of `numba.njit`.
    """
    options = {"no_cfunc_wrapper": True, **options}  # an entry for C, which nothing here calls

    def decorate(function: _Function) -> _Function:
        made: Any
        try:
            made = numba.njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            folder = fallback_folder()
            if folder is not None:
                setattr(numba.config, "CACHE_DIR", str(folder))  # noqa: B010  (numba makes it by name)
            made = numba.njit(cache=folder is not None, **options)(function)
        _take_literals_as_numbers(made)
        if getattr(made._cache, "_cache_file", None) is not None:  # there is a cache
            _name_code_by_key(made._cache._cache_file)
            _load_code_alone(made._cache)
            _go_on_without_saving(made._cache)
        return cast(_Function, made)

    return decorate


def _name_code_by_key(file: Any) -> None:
    """Give each compiled version of a function its own file in the cache.

    numba numbers them: processes that compile versions for other types at the same time took one
    number for both, and the code of one was run on the arrays of the other.
    """

    def save(key: Any, data: Any) -> None:
        types, processor, (_, constants) = key  # the code's own hash would leave files behind
        name = sha256(repr((types, processor, constants)).encode()).hexdigest()[:20]
        data_name = f"{file._index_name.removesuffix('.nbi')}.{name}.nbc"
        file._save_data(data_name, data)
        file._save_index({**file._load_index(), key: data_name})

    file.save = save


def _load_code_alone(cached: Any) -> None:
    """Load code from the cache without what only compiling needs.

    numba would first make its tables of all that can be compiled, for 0.2 s in each process, as it
    does before it compiles. Only code with sets or dictionaries needs them to run; do not use any.
    """
    runtime: Any = numba.core.runtime

    def load_overload(signature: Any, target: Any) -> Any:
        runtime.rtsys.initialize(target)  # code may allocate arrays
        with cached._guard_against_spurious_io_errors():
            return cached._load_overload(signature, target)

    cached.load_overload = load_overload


def _go_on_without_saving(cached: Any) -> None:
    """Use code that cannot be saved, for example because the disk is full."""
    save = cached.save_overload

    def save_overload(signature: Any, code: Any) -> None:
        try:
            save(signature, code)
        except OSError as error:
            _warn_of(f"{Path(cached.cache_path).parent}: {error.strerror or error}")

    cached.save_overload = save_overload


@cache
def _warn_of(failure: str) -> None:
    """Warn that kernels cannot be saved, once: Python forgets between two what it has said."""
    warnings.warn(f"compiled kernels are not cached in {failure}: {CHOOSE}", stacklevel=2)


def _take_literals_as_numbers(function: Any) -> None:
    """Let compiled callers that pass constants use the code for numbers.

    numba would compile a function once more for each constant that it is called with.
    """
    choose, number = function.get_call_template, cast(Any, numba.types.unliteral)

    def get_call_template(args: Any, kws: Any) -> Any:
        numbers = {name: number(kind) for name, kind in kws.items()}
        return choose([*map(number, args)], numbers)

    function.get_call_template = get_call_template


def inner(**options: Any) -> Callable[[_Function], _Function]:
    """Return a decorator as `compiled` does, for a function that only compiled ones call.

    It has no entry for Python, which takes as long to compile as many a function itself.
    """
    return compiled(no_cpython_wrapper=True, **options)


@cache
def fallback_folder() -> Path | None:
    """Return a folder for the cache that no other user can write to; None if there is none.

    Cached code is run, so that a folder which another user has prepared is not used. One line warns
    when the folder is new, and every time if there is none.
    """
    try:
        folder = Path(tempfile.gettempdir(), f"symgraph-{os.getuid()}")
        try:
            folder.mkdir(mode=0o700)
            warnings.warn(f"compiled kernels are cached in {folder}: {CHOOSE}", stacklevel=3)
        except FileExistsError:
            found = folder.lstat()
            private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
            if not private or found.st_uid != os.getuid():
                raise PermissionError(f"{folder} is another user's") from None
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        warnings.warn(f"compiled kernels are not cached: {CHOOSE}", stacklevel=3)
        return None
    return folder


@inner()
def overwrite(old: Array, new: Array) -> None:
    """Do what `old[:] = new` does, whose message about shapes takes numba seconds to compile."""
    for i in range(len(old)):
        old[i] = new[i]


@inner()
def largest(numbers: Array) -> Any:
    """Return the largest of some numbers, as `numbers.max()`, which numba compiles for longer."""
    most = numbers[0]
    for i in range(1, len(numbers)):
        if numbers[i] > most:
            most = numbers[i]
    return most
