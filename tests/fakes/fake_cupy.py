"""A strict stand-in for CuPy on numpy, so that what runs on GPUs is tested where there is none.

Its arrays are no numpy arrays: as with CuPy, nothing converts between the two unasked, arithmetic
of the two together is a TypeError, reductions give arrays without axes, and a function that CuPy
has not is an AttributeError. Its cards cannot reach each other's memory but by copies. Kernels are
built by g++ (tests/fakes/fake_kernels.py). What two streams do at once is done one after the other,
but uses of memory that no event keeps in order are errors (tests/fakes/fake_memory.py). What it
cannot show is what is slow.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from scipy import special as of_scipy

from runtime.backends.device import arrays
from tests.fakes.fake_blas import Library
from tests.fakes.fake_graphs import (
    CUDARuntimeError,
    MemoryPool,
    Recycled,
    arrays_of,
    capturing,
    noted,
    on_host,
    piece_of,
    using_allocator,
)
from tests.fakes.fake_kernels import RawModule
from tests.fakes.fake_memory import uses, watch
from tests.fakes.fake_streams import (
    CARDS,
    Device,
    Event,
    Stream,
    card,
    count,
    current,
    get_elapsed_time,
    nvtx,
)


def _words(text: str) -> list[str]:
    return text.split()


UFUNCS = _words("""
abs absolute add arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_or
bitwise_xor cbrt ceil cos cosh degrees divide equal exp expm1 floor floor_divide fmod greater
greater_equal hypot invert isfinite isinf isnan left_shift less less_equal log log10 log1p
log2 logaddexp logical_and logical_not logical_or logical_xor maximum minimum mod multiply
negative not_equal positive power radians reciprocal remainder right_shift rint sign sin sinh
sqrt square subtract tan tanh true_divide trunc
""")
FUNCTIONS = _words("""
all any arange argmax argmin argsort atleast_1d atleast_2d broadcast_to clip concatenate copy
copyto cumsum dot empty empty_like expand_dims flatnonzero flip full full_like indices matmul
max mean min moveaxis nonzero ones ones_like pad prod ravel repeat reshape roll rollaxis
searchsorted sort split squeeze stack sum swapaxes take take_along_axis tensordot tile
transpose tril triu unique where zeros zeros_like
""")
SIZED = _words("nonzero flatnonzero unique")
VIEWS = _words("""
atleast_1d atleast_2d broadcast_to expand_dims moveaxis ravel reshape rollaxis split squeeze
swapaxes transpose view
""")
PRODUCTS = _words("dot matmul tensordot")
CONSTANTS = _words("""
bool_ dtype finfo float16 float32 float64 iinfo inf int8 int32 int64 nan newaxis pi uint8
uint32 uint64
""")
METHODS = _words("""
all any argmax argmin argsort astype clip cumsum dot max mean min nonzero prod ravel
repeat reshape sort squeeze sum swapaxes take transpose view
""")


def _refuse(value: object) -> None:
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}: a numpy array where CuPy's is wanted")


def _bare(value: Any) -> Any:
    """What numpy computes on; TypeError for a numpy array among CuPy's."""
    if isinstance(value, ndarray):
        return value._array
    if isinstance(value, (tuple, list)):
        return type(value)(map(_bare, value))
    _refuse(value)
    return value


def _dressed(value: Any, on: int | None = None) -> Any:
    """A result as CuPy gives it; on: which card it lies."""
    if isinstance(value, (tuple, list)):
        parts = [_dressed(part, on) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, (np.ndarray, np.generic)):
        return ndarray(np.asarray(value), on)
    return value


def _require_reach(values: Any) -> None:
    """ValueError for an array of another card, as with CuPy where cards have no peer access."""
    for value in values:
        if isinstance(value, (tuple, list)):
            _require_reach(value)
        elif isinstance(value, ndarray) and value.device.id != card():
            raise ValueError(
                f"The device where the array resides ({value.device.id}) is different from the "
                f"current device ({card()}). Peer access is unavailable between these devices."
            )


def _through(function: Callable[..., Any], name: str = "") -> Callable[..., Any]:
    name = name or getattr(function, "__name__", "")

    def called(*args: Any, **kwargs: Any) -> Any:
        if name in SIZED:
            on_host("a result whose size hangs on values")
        if name == "where" and not isinstance(args[0], ndarray):
            raise AttributeError(f"{type(args[0]).__name__!r} object has no attribute 'astype'")
        if name in PRODUCTS and capturing() is not None:
            raise NotImplementedError("calling cuBLAS API during stream capture is unsupported")
        if name not in VIEWS and function is not np.copyto:
            _require_reach((*args, *kwargs.values()))
        out = kwargs.get("out")
        written = [out._array] if out is not None else []
        if function is np.copyto:
            written = [args[0]._array]
        given = [_bare(arg) for arg in args]
        named = {key: _bare(value) for key, value in kwargs.items()}
        if name not in VIEWS:
            uses(arrays_of(given[function is np.copyto :]), written)

        def call() -> Any:
            return _arrays(function(*given, **named))

        found = noted(call, *written)
        on = args[0].device.id if name in VIEWS and isinstance(args[0], ndarray) else None
        return out if out is not None else _dressed(found, on)

    return called


def _arrays(value: Any) -> Any:
    """With arrays of no axes instead of numpy's scalars."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(_arrays, value))
    return np.asarray(value) if isinstance(value, np.generic) else value


class _Ufunc:
    def __init__(self, ufunc: np.ufunc) -> None:
        self._ufunc, self.nin = ufunc, ufunc.nin
        if ufunc is np.add:  # of others CuPy has no more than `at`, of some
            self.reduceat = _through(ufunc.reduceat)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) > self.nin:  # out by position
            kwargs["out"], args = args[self.nin], args[: self.nin]
        return _through(self._ufunc)(*args, **kwargs)


class _Pointer:
    def __init__(self, ptr: int) -> None:
        self.ptr = ptr


class ndarray(NDArrayOperatorsMixin):
    """Memory of a GPU, as far as this process is concerned."""

    def __init__(self, array: np.ndarray, on: int | None = None) -> None:
        """on: the card that it lies on, by default the one in use."""
        assert isinstance(array, np.ndarray)
        self._array, self._piece = array, piece_of(array)
        self.device = Device(card() if on is None else on)

    shape = property(lambda self: self._array.shape)
    dtype = property(lambda self: self._array.dtype)
    size = property(lambda self: self._array.size)
    nbytes = property(lambda self: self._array.nbytes)
    ndim = property(lambda self: self._array.ndim)
    itemsize = property(lambda self: self._array.itemsize)
    strides = property(lambda self: self._array.strides)
    T = property(lambda self: ndarray(self._array.T, self.device.id))
    data = property(lambda self: _Pointer(self._array.ctypes.data))

    @property
    def flags(self) -> Any:
        """CuPy's flags know c_contiguous, f_contiguous and owndata only."""
        flags = self._array.flags
        return type(
            "Flags",
            (),
            {name: getattr(flags, name) for name in ("c_contiguous", "f_contiguous", "owndata")},
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        found = self._array.__array_interface__
        return {name: found[name] for name in ("shape", "typestr", "data", "strides", "version")}

    def get(self, out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        on_host("get")
        if blocking:
            self._fetch()
        else:  # it is there when the stream has been waited for
            uses([self._array])
            current().busy = True
        if out is None:
            return self._array.copy()
        assert type(out) is np.ndarray
        assert (out.dtype, out.shape, out.flags.c_contiguous) == (self.dtype, self.shape, True)
        out[...] = self._array
        return out

    def _fetch(self) -> None:
        """The host waits until it has the values."""
        uses([self._array])
        current().end()

    def set(self, array: np.ndarray) -> None:
        on_host("set")
        assert type(array) is np.ndarray
        assert array.dtype == self.dtype
        assert array.shape == self.shape
        assert self._array.flags.c_contiguous or self._array.flags.f_contiguous
        current().busy = True
        uses((), [self._array])
        self._array[...] = array

    def copy(self, order: str = "C") -> ndarray:
        """On the card in use, from any."""
        uses([self._array])
        _require_room(self._array.nbytes)
        return ndarray(noted(lambda: self._array.copy(order)))

    def fill(self, value: Any) -> None:
        _require_reach([self])
        uses((), [self._array])
        noted(lambda: self._array.fill(_bare(value)), self._array)

    def item(self) -> Any:
        on_host("item")
        self._fetch()
        return self._array.item()

    def tolist(self) -> Any:
        on_host("tolist")
        self._fetch()
        return self._array.tolist()

    def __getitem__(self, key: Any) -> ndarray:
        bare = _bare(key)
        if isinstance(bare, np.ndarray) and bare.dtype == bool:
            on_host("as many elements as a mask has")
        if any(True for _ in arrays_of(bare)):  # else it is a view
            _require_reach([self])
            uses([self._array])
        return ndarray(noted(lambda: np.asarray(self._array[bare])), self.device.id)

    def __setitem__(self, key: Any, value: Any) -> None:
        current().busy = True
        bare, given = _bare(key), _bare(value)
        self._require_way(bare, value)
        uses(arrays_of(given), [np.asarray(self._array[bare])])
        noted(lambda: self._array.__setitem__(bare, given), self._array)

    def _require_way(self, key: Any, value: Any) -> None:
        """What is laid out alike is copied from card to card, all else is a kernel's work."""
        target = np.asarray(self._array[key])
        if isinstance(value, ndarray) and target.flags.c_contiguous:
            alike = (target.shape, target.strides, target.dtype)
            if alike == (value.shape, value.strides, value.dtype):
                return
        _require_reach([self, value])

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[ndarray]:
        return (ndarray(np.asarray(row), self.device.id) for row in self._array)

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __matmul__(self, other: Any) -> ndarray:
        return _through(np.matmul)(self, other)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed: use .get()")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or ufunc.__name__ not in UFUNCS:
            raise TypeError(f"numpy.{ufunc.__name__}.{method} on a GPU's array")
        out = kwargs.pop("out", None)
        return _through(ufunc)(*inputs, **kwargs, **({} if out is None else {"out": out[0]}))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} on a GPU's array: use the device's module")


for _name in METHODS:
    setattr(
        ndarray,
        _name,
        lambda self, *args, _name=_name, **kwargs: _through(
            lambda array, *rest, **named: getattr(array, _name)(*rest, **named), _name
        )(self, *args, **kwargs),
    )


# -- memory ----------------------------------------------------------------------------------------


class OutOfMemoryError(MemoryError):
    """CuPy's error for what no card can hold."""


LOADED = arrays.shared_library
MEMORY = 1 << 30  # bytes of a card, and so of an array at most


# -- the module ------------------------------------------------------------------------------------


def _require_room(nbytes: int) -> None:
    if nbytes > MEMORY:
        raise OutOfMemoryError(f"Out of memory allocating {nbytes} bytes")


def _array(value: Any, dtype: Any = None, order: str = "K", copy: bool = True) -> ndarray:
    if isinstance(value, ndarray):
        _require_reach([value])
        uses([value._array])
        made = noted(lambda: np.array(value._array, dtype, order=order, copy=True))
    else:
        on_host("an array from the host")
        made = np.array(value, dtype, order=order, copy=True)
    _require_room(made.nbytes)
    return ndarray(made)


def _asarray(value: Any, dtype: Any = None, order: str | None = None) -> ndarray:
    if isinstance(value, ndarray) and dtype in (None, value.dtype):
        return value
    return _array(value, dtype)


def _zeros(shape: Any, dtype: Any = np.float64) -> ndarray:
    """CuPy's pool gives memory that begins at a multiple of 512."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    _require_room(size)
    memory = np.zeros(size + 512, np.uint8)
    if dtype is np.uint8:  # as devices want it
        watch(memory)
        uses((), [memory])
    start = -memory.ctypes.data % 512
    made = memory[start : start + size].view(dtype).reshape(shape)
    noted(lambda: made.fill(0), made)  # when a graph is launched again, too
    return ndarray(made)


def _watched(size: int) -> np.ndarray:
    """Memory whose uses are noted."""
    memory = np.zeros(size, np.uint8)
    watch(memory)
    return memory


def _empty(shape: Any, dtype: Any = np.float64) -> ndarray:
    """Bytes, which are somebody's own memory, are what somebody else has let go of."""
    if np.dtype(dtype) != np.uint8:
        return EMPTY(shape, dtype)
    _require_room(int(np.prod(shape)))
    piece = Recycled(int(np.prod(shape)), current(), _watched)
    return ndarray(piece.room.reshape(shape))


EMPTY = _through(np.empty)


def _module() -> ModuleType:
    cupy = ModuleType("cupy")
    for name in UFUNCS:
        setattr(cupy, name, _Ufunc(getattr(np, name)))
    for name in FUNCTIONS:
        setattr(cupy, name, _through(getattr(np, name)))
    for name in CONSTANTS:
        setattr(cupy, name, getattr(np, name))
    cupy.ndarray, cupy.array, cupy.asarray = ndarray, _array, _asarray
    cupy.zeros, cupy.empty = _zeros, _empty
    cupy.ascontiguousarray = _through(np.ascontiguousarray)
    cupy.asnumpy = lambda a: a.get() if isinstance(a, ndarray) else np.asarray(a)
    cupy.linalg = ModuleType("cupy.linalg")
    for name in ("cholesky", "inv", "solve"):
        setattr(cupy.linalg, name, _through(getattr(np.linalg, name)))
    memory = ModuleType("cupy.cuda.memory")
    memory.OutOfMemoryError = OutOfMemoryError
    runtime = ModuleType("cupy.cuda.runtime")
    runtime.memGetInfo = lambda: (1 << 20, MEMORY)
    runtime.getDeviceCount, runtime.CUDARuntimeError = count, CUDARuntimeError
    runtime.getDevice = card
    runtime.getDeviceProperties = lambda card: {"name": f"stand-in {card}".encode()}
    runtime.driverGetVersion = runtime.runtimeGetVersion = lambda: 12000
    cuda = ModuleType("cupy.cuda")
    cuda.runtime, cuda.Device, cuda.Stream, cuda.Event = runtime, Device, Stream, Event
    cuda.get_elapsed_time, cuda.nvtx = get_elapsed_time, nvtx()
    cuda.get_current_stream, cuda.memory = current, memory
    cuda.cublas = ModuleType("cupy.cuda.cublas")  # its library is called, it is not
    cuda.MemoryPool, cuda.using_allocator = MemoryPool, using_allocator
    cuda.alloc_pinned_memory = bytearray
    cupy.cuda, cupy.RawModule, cupy.__version__ = cuda, RawModule, "stand-in"
    return cupy


@contextmanager
def fake_cupy(cards: int | str = 1) -> Iterator[ModuleType]:
    """Let `import cupy` give this one; cards: GPUs of the machine, or what CUDA complains of."""
    special = ModuleType("cupyx.scipy.special")
    for name in ("erf", "erfinv", "gamma", "gammaln", "digamma"):
        setattr(special, name, _through(getattr(of_scipy, name)))
    cupyx = ModuleType("cupyx")
    cupyx.empty_pinned = lambda shape, dtype=float: np.empty(shape, dtype)
    made = {"cupy": _module(), "cupyx": cupyx, "cupyx.scipy.special": special}
    before, counted = {name: sys.modules.get(name) for name in made}, CARDS[0]
    sys.modules.update(made)
    CARDS[0], arrays.shared_library = cards, lambda *names: Library()
    try:
        yield made["cupy"]
    finally:  # what else was imported meanwhile stays
        CARDS[0], arrays.shared_library = counted, LOADED
        Recycled.free.clear()
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
