"""Initializers: the first values of a parameter, from its name, shape, dtype and a seed.

Names, arguments and rules are MXNet 1.9's. Random values depend only on the seed, the parameter's
name and the number of the element, so they are the same on every device, whatever other parameters
there are and in whatever order they are initialized.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from symgraph.core import rand
from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.core.number_checks import require_numbers
from symgraph.core.seeding import SEEDING

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Draw = Callable[[ModuleType, int, Array, npt.DTypeLike], Array]

_BLOCK = 1 << 16  # elements drawn at a time; it does not affect the values

_ZERO_ENDINGS = (
    "bias",
    "beta",
    "moving_mean",
    "moving_inv_var",
    "moving_avg",
    "_init_c",
    "_init_h",
)
_ONE_ENDINGS = ("gamma", "moving_var")
_OWN = {"bias": "_init_bias", "beta": "_init_beta", "gamma": "_init_gamma"}


class InitDesc(str):
    """A parameter's name with its variable's attributes (`mx.init.InitDesc`)."""

    #: The variable's attributes.
    attrs: Mapping[str, str]
    #: The network's initializer.
    global_init: Any
    #: The seed of the values.
    seed: int

    def __new__(
        cls, name: str, attrs: Mapping[str, str] | None = None, global_init: Any = None
    ) -> InitDesc:
        made = super().__new__(cls, name)
        made.attrs, made.global_init = attrs or {}, global_init
        return made


def _or_in_place(call: Callable[..., Array]) -> Callable[..., Array]:
    """Let a call with a name and an array fill the array, as MXNet's calls do."""

    @wraps(call)
    def either(self: Any, name: str, shape: Any, *others: Any, **named: Any) -> Array:
        if not isinstance(shape, np.ndarray):
            return call(self, name, shape, *others, **named)
        attrs = getattr(name, "attrs", None)
        shape[...] = call(self, str(name), shape.shape, shape.dtype, SEEDING.seed, attrs)
        return shape

    return either


@dataclass(frozen=True, init=False)
class Initializer:
    """Base class of initializers (`mx.init.Initializer`).

    One of one's own implements `fill`, or MXNet's `_init_weight(name, arr)`, which changes an array
    in place; then `_init_bias`, `_init_gamma`, `_init_beta` and `_init_default` too, where the
    rules below are not wanted.

    The ending of the parameter's name decides: names in `weight` are filled by the initializer,
    those in `bias` or `beta`, moving means and initial RNN states with 0, those in `gamma` and
    `moving_var` with 1. A variable's attribute `__init__` (an initializer's `dumps()`) takes
    precedence. Raises GraphError for arguments that are not numbers.
    """

    def __init__(self, **arguments: Any) -> None:
        """Keep the arguments of an initializer of one's own, for `dumps`."""
        object.__setattr__(self, "_arguments", arguments)

    def __post_init__(self) -> None:
        require_numbers(self, GraphError)

    @_or_in_place
    def __call__(
        self,
        name: str,
        shape: Shape,
        dtype: npt.DTypeLike,
        seed: int,
        attrs: Mapping[str, str] | None = None,
    ) -> Array:
        """Return a new array with the first values of a parameter.

        Called with a name and an array of numpy or `mx.nd`, it fills the array instead, with the
        seed of `mx.random.seed`. Raises GraphError for a name that no rule covers.
        """
        text = (attrs or {}).get("__init__")
        if text:
            return _load(text, {}).fill(name, shape, dtype, seed)
        if name.endswith("weight"):
            return self.fill(name, shape, dtype, seed)
        own = next((n for e, n in _OWN.items() if name.endswith(e) and hasattr(self, n)), None)
        if own is not None:
            return self._changed(own, name, shape, dtype, seed)
        if name.endswith(_ZERO_ENDINGS):
            return np.zeros(shape, dtype)
        if name.endswith(_ONE_ENDINGS):
            return np.ones(shape, dtype)
        if hasattr(self, "_init_default"):
            return self._changed("_init_default", name, shape, dtype, seed)
        known = ", ".join(("weight", *_ZERO_ENDINGS, *_ONE_ENDINGS))
        raise GraphError(
            f"no first values for parameter {name!r}: its name does not end in one of {known}; "
            f"set them with Variable({name!r}, init=init.Zero()) or another initializer"
        )

    def dumps(self) -> str:
        """Write the initializer as JSON `[name, arguments]`, as MXNet does; `create` reads it."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    @property
    def _kwargs(self) -> dict[str, Any]:
        """The arguments by MXNet's name for them, as JSON has them."""
        own = getattr(self, "_arguments", {}) | {
            f.name: getattr(self, f.name) for f in fields(self)
        }
        read: dict[str, Any] = json.loads(json.dumps(own, default=lambda a: np.asarray(a).tolist()))
        return read

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        """Return the values regardless of the name's ending; the name seeds the random numbers."""
        return self._changed("_init_weight", name, shape, dtype, seed)

    def __init_subclass__(cls) -> None:
        """Call a subclass's own `_init_weight` instead of the `fill` that it inherits."""
        if "_init_weight" in vars(cls) and "fill" not in vars(cls):
            cls.fill = Initializer.fill  # type: ignore[method-assign]

    def _init_weight(self, name: Any, arr: Array) -> None:
        """Fill an array in place by the nearest `fill`; what a subclass in MXNet's way calls."""
        for kind in type(self).__mro__:
            fill = vars(kind).get("fill", Initializer.fill)
            if fill is not Initializer.fill:
                seed = getattr(name, "seed", SEEDING.seed)
                arr[...] = fill(self, str(name), arr.shape, arr.dtype, seed)
                return
        kind_name = type(self).__name__
        raise NotImplementedError(f"initializer {kind_name} has neither fill nor _init_weight")

    def _changed(
        self, method: str, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int
    ) -> Array:
        """Return what a method in MXNet's way makes of an array of zeros."""
        array, desc = np.zeros(shape, dtype), InitDesc(name)
        desc.seed = seed
        getattr(self, method)(desc, array)
        return array


INITIALIZERS: dict[str, type[Initializer]] = {}


def register(kind: type[Initializer]) -> type[Initializer]:
    """Register an initializer class under its lower-case name for `create` (`mx.init.register`).

    Raises GraphError if the name is taken.
    """
    name = kind.__name__.lower()
    if name in INITIALIZERS:
        raise GraphError(f"initializer {name!r} already exists: choose another class name")
    INITIALIZERS[name] = kind
    return kind


@register
@dataclass(frozen=True)
class Zero(Initializer):
    """Fill with zeros (`mx.init.Zero`)."""

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        return np.zeros(shape, dtype)


@register
@dataclass(frozen=True)
class One(Initializer):
    """Fill with ones (`mx.init.One`)."""

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        return np.ones(shape, dtype)


@register
@dataclass(frozen=True)
class Constant(Initializer):
    """Fill with one value, or with an array that broadcasts to the shape (`mx.init.Constant`)."""

    value: Any

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        try:
            return np.full(shape, self.value, dtype)
        except (ValueError, TypeError) as error:
            raise ShapeError(
                f"parameter {name!r} of shape {shape} cannot be filled with {self.value!r}: {error}"
            ) from None


@register
@dataclass(frozen=True)
class Uniform(Initializer):
    """Draw from the uniform distribution over [-scale, scale) (`mx.init.Uniform`)."""

    scale: float = 0.07

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        return _symmetric(name, shape, dtype, seed, self.scale)


@register
@dataclass(frozen=True)
class Normal(Initializer):
    """Draw from the normal distribution, mean 0, standard deviation sigma (`mx.init.Normal`)."""

    sigma: float = 0.01

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        return _gaussian(name, shape, dtype, seed, self.sigma)


@register
@dataclass(frozen=True)
class Orthogonal(Initializer):
    """Fill with scale times a matrix of orthonormal rows or columns (`mx.init.Orthogonal`).

    The matrix holds the singular vectors of a random one, drawn by rand_type "uniform" or "normal";
    axes after the first count as one. Source: Saxe, McClelland, Ganguli, arXiv:1312.6120.
    """

    scale: float = 1.414
    rand_type: str = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        _choose("Orthogonal", "rand_type", self.rand_type, ("uniform", "normal"))

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        _require_matrix(self, name, shape)
        matrix = (shape[0], math.prod(shape[1:]))
        draw = _symmetric if self.rand_type == "uniform" else _gaussian
        u, _, v = np.linalg.svd(draw(name, matrix, np.float64, seed, 1.0), full_matrices=False)
        vectors = u if u.shape == matrix else v
        return (self.scale * vectors).reshape(shape).astype(dtype)


@register
@dataclass(frozen=True)
class Bilinear(Initializer):
    """Fill with the kernel of bilinear interpolation (`mx.init.Bilinear`).

    A Deconvolution with it, one group for each channel, enlarges images smoothly by a factor f if
    its kernels are 2 f - f % 2 long in both directions, stride f and padding ceil((f - 1) / 2).
    Source: Long, Shelhamer and Darrell, arXiv:1411.4038.
    """

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        if len(shape) != 4:
            raise ShapeError(f"parameter {name!r} of shape {shape}: Bilinear fills 4 axes")
        half = math.ceil(shape[3] / 2)
        centre = (2 * half - 1 - half % 2) / (2 * half)
        y, x = (1 - np.abs(np.arange(n) / half - centre) for n in shape[2:])
        return np.broadcast_to(y[:, None] * x, shape).astype(dtype)


@register
@dataclass(frozen=True)
class Xavier(Initializer):
    """Draw with a variance of magnitude / 3 / n (uniform) or magnitude / n (`mx.init.Xavier`).

    n is the fan-in (shape[1]), the fan-out (shape[0]) or their mean, for factor_type "in", "out"
    or "avg", times the sizes of the other axes. Source: Glorot and Bengio, AISTATS 2010.
    """

    rnd_type: str = "uniform"
    factor_type: str = "avg"
    magnitude: float = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        _choose("Xavier", "rnd_type", self.rnd_type, ("uniform", "gaussian"))
        _choose("Xavier", "factor_type", self.factor_type, ("avg", "in", "out"))
        if self.magnitude < 0:
            raise GraphError(f"Xavier: magnitude is {self.magnitude} but must be 0 or more")

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        _require_matrix(self, name, shape)
        fan = {"in": shape[1], "out": shape[0], "avg": (shape[0] + shape[1]) / 2}
        scale = math.sqrt(self.magnitude / (fan[self.factor_type] * math.prod(shape[2:])))
        draw = _symmetric if self.rnd_type == "uniform" else _gaussian
        return draw(name, shape, dtype, seed, scale)


@register
@dataclass(frozen=True)
class MSRAPrelu(Initializer):
    """Draw as a gaussian `Xavier` of magnitude 2 / (1 + slope**2) (`mx.init.MSRAPrelu`).

    Source: He et al., arXiv:1502.01852.
    """

    factor_type: str = "avg"
    slope: float = 0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        _choose("MSRAPrelu", "factor_type", self.factor_type, ("avg", "in", "out"))

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        xavier = Xavier("gaussian", self.factor_type, 2.0 / (1.0 + self.slope**2))
        return xavier.fill(name, shape, dtype, seed)


@register
@dataclass(frozen=True)
class LSTMBias(Initializer):
    """Fill an LSTM's bias with 0, except for the forget gate's quarter (`mx.init.LSTMBias`).

    The gates are in the order i, f, c, o; f gets forget_bias.
    """

    forget_bias: float = 1.0

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        if not shape or shape[0] % 4:
            raise ShapeError(
                f"parameter {name!r} of shape {shape} is not the bias of an LSTM: its first axis "
                f"must hold 4 gates of equal size"
            )
        values = np.zeros(shape, dtype)
        hidden = shape[0] // 4
        values[hidden : 2 * hidden] = self.forget_bias
        return values


class Mixed:
    """Choose each parameter's initializer by a pattern of its name (`mx.init.Mixed`).

    Patterns are regular expressions; the first one that matches the beginning of the name wins.
    The chosen initializer then follows the name's ending, as always.
    """

    def __init__(
        self, patterns: Sequence[str], initializers: Sequence[str | Initializer | Mixed]
    ) -> None:
        if len(patterns) != len(initializers):
            raise GraphError(
                f"Mixed needs one initializer per pattern: {len(patterns)} patterns, "
                f"{len(initializers)} initializers"
            )
        try:
            compiled = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            raise GraphError(f"Mixed: {error.pattern!r} is not a pattern: {error}") from None
        self._rules = list(zip(compiled, map(create, initializers), strict=True))

    @_or_in_place
    def __call__(
        self,
        name: str,
        shape: Shape,
        dtype: npt.DTypeLike,
        seed: int,
        attrs: Mapping[str, str] | None = None,
    ) -> Array:
        for pattern, initializer in self._rules:
            if pattern.match(name):
                return initializer(name, shape, dtype, seed, attrs)
        tried = ", ".join(repr(pattern.pattern) for pattern, _ in self._rules)
        raise GraphError(
            f"parameter {name!r} matches none of the patterns {tried}: add '.*' as the last one"
        )


class Load:
    """Take values that are known, and draw others (`mx.init.Load`).

    Args:
        param: The values by name, which may begin with `arg:` or `aux:`.
        default_init: The initializer of all others; None: there must be none.

    Raises:
        GraphError: A parameter has another shape here, or there is no value of it; or the values
            are no table, but MXNet's path of a file.
    """

    def __init__(
        self,
        param: Mapping[str, Any],
        default_init: str | Initializer | Mixed | None = None,
    ) -> None:
        if not isinstance(param, Mapping):
            raise GraphError(
                f"Load takes a table of values, not {param!r}: read a file with nd.load(path)"
            )
        self.param = {re.sub("^(arg|aux):", "", name): np.asarray(a) for name, a in param.items()}
        self.default_init = None if default_init is None else create(default_init)

    @_or_in_place
    def __call__(
        self,
        name: str,
        shape: Shape,
        dtype: npt.DTypeLike,
        seed: int,
        attrs: Mapping[str, str] | None = None,
    ) -> Array:
        value = self.param.get(name)
        if value is None and self.default_init is not None:
            return self.default_init(name, shape, dtype, seed, attrs)
        if value is None:
            raise GraphError(f"no value for parameter {name!r}; {nearest(name, self.param)}")
        if value.shape != tuple(shape):
            raise GraphError(
                f"parameter {name!r} has the shape {tuple(shape)} in the network, but the known "
                f"value has {value.shape}"
            )
        return np.array(value, dtype)


AnyInitializer = Initializer | Mixed | Load


def create(initializer: AnyInitializer | str, **arguments: Any) -> AnyInitializer:
    """Make an initializer from its name (in any case) or its `dumps()`; return one unchanged.

    Raises GraphError for an unknown name or argument, and for anything else.
    """
    function = callable(initializer) and not isinstance(initializer, type)
    if not function and not isinstance(initializer, str):
        raise GraphError(
            f"{initializer!r} is not an initializer: pass one such as Xavier(), or its name"
        )
    return _load(initializer, arguments) if isinstance(initializer, str) else initializer


def _load(text: str, arguments: Mapping[str, Any]) -> Initializer:
    name = text
    if text.startswith("["):
        try:
            name, arguments = json.loads(text)
            name, arguments = str.lower(name), dict(arguments)
        except (TypeError, ValueError, RecursionError):
            raise GraphError(f"initializer {text!r} is not JSON of [name, arguments]") from None
    name = _ALIASES.get(name.lower(), name.lower())
    if name not in INITIALIZERS:
        raise GraphError(f"unknown initializer {name!r}: {nearest(name, INITIALIZERS)}")
    try:
        return INITIALIZERS[name](**arguments)
    except TypeError as error:
        raise GraphError(f"initializer {name!r}: {error}") from error


_ALIASES = {"zeros": "zero", "ones": "one"}


def _symmetric(name: str, shape: Shape, dtype: npt.DTypeLike, seed: int, scale: float) -> Array:
    values = _draw(rand.uniform, name, shape, dtype, seed)
    values *= 2.0
    values -= 1.0
    values *= scale
    return values


def _gaussian(name: str, shape: Shape, dtype: npt.DTypeLike, seed: int, sigma: float) -> Array:
    values = _draw(rand.normal, name, shape, dtype, seed)
    values *= sigma
    return values


def _draw(draw: Draw, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
    values = np.empty(shape, dtype)
    flat, key = values.reshape(-1), rand.key(seed, "init", name)
    for start in range(0, flat.size, _BLOCK):
        stop = min(start + _BLOCK, flat.size)
        flat[start:stop] = draw(np, key, np.arange(start, stop, dtype=np.uint64), dtype)
    return values


def _choose(kind: str, argument: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise GraphError(f"{kind}: unknown {argument} {value!r}: {nearest(value, known)}")


def _require_matrix(initializer: Initializer, name: str, shape: Shape) -> None:
    if len(shape) < 2:
        raise ShapeError(
            f"{type(initializer).__name__} needs two axes or more but parameter {name!r} has "
            f"shape {shape}: choose another initializer with Variable({name!r}, init=...)"
        )
