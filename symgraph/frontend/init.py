"""Initialisers: the first values of a parameter, from its name, shape, dtype and a seed.

Names, arguments and rules are MXNet 1.9's. Random values come from `rand` alone, keyed by the
seed and the parameter's name and counted by element, so they do not depend on the device, on the
other parameters, or on the order in which they are made.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from symgraph.core import rand
from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.core.number_checks import require_numbers

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Draw = Callable[[ModuleType, int, Array, npt.DTypeLike], Array]

_BLOCK = 1 << 16  # elements drawn at a time; the values do not depend on it

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


@dataclass(frozen=True)
class Initializer(ABC):
    """Gives a parameter its first values (`mx.init.Initializer`).

    What is done depends on the end of the parameter's name: `weight` is filled by the initialiser
    itself, `bias`, `beta`, moving means and initial RNN states with 0, `gamma` and `moving_var`
    with 1. The attribute `__init__` of a variable, the `dumps()` of an initialiser, comes first.
    Raises GraphError for arguments that are no numbers.
    """

    def __post_init__(self) -> None:
        require_numbers(self, GraphError)

    def __call__(
        self,
        name: str,
        shape: Shape,
        dtype: npt.DTypeLike,
        seed: int,
        attrs: Mapping[str, str] | None = None,
    ) -> Array:
        """A new array of values; GraphError for a name that no rule covers."""
        own = (attrs or {}).get("__init__")
        if own:
            return _load(own, {}).fill(name, shape, dtype, seed)
        if name.endswith("weight"):
            return self.fill(name, shape, dtype, seed)
        if name.endswith(_ZERO_ENDINGS):
            return np.zeros(shape, dtype)
        if name.endswith(_ONE_ENDINGS):
            return np.ones(shape, dtype)
        known = ", ".join(("weight", *_ZERO_ENDINGS, *_ONE_ENDINGS))
        raise GraphError(
            f"no first values for parameter {name!r}: its name does not end in one of {known}; "
            f"say what they are with Variable({name!r}, init=init.Zero()) or another initialiser"
        )

    def dumps(self) -> str:
        """The initialiser as JSON, [name, arguments], as MXNet writes it; see `create`."""
        arguments = {f.name: getattr(self, f.name) for f in fields(self)}
        kind = type(self).__name__.lower()
        return json.dumps([kind, arguments], default=lambda value: np.asarray(value).tolist())

    @abstractmethod
    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        """The values, whatever the name ends in; the name is the key of the random numbers."""


INITIALIZERS: dict[str, type[Initializer]] = {}


def register(kind: type[Initializer]) -> type[Initializer]:
    """Make an initialiser known to `create` by its lower-case class name (`mx.init.register`)."""
    name = kind.__name__.lower()
    if name in INITIALIZERS:
        raise GraphError(f"there is an initialiser {name!r} already: choose another class name")
    INITIALIZERS[name] = kind
    return kind


@register
@dataclass(frozen=True)
class Zero(Initializer):
    """All zeros."""

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        return np.zeros(shape, dtype)


@register
@dataclass(frozen=True)
class One(Initializer):
    """All ones."""

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        return np.ones(shape, dtype)


@register
@dataclass(frozen=True)
class Constant(Initializer):
    """One value everywhere, or an array's values, which are repeated along axes that it lacks."""

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
    """Evenly spread over [-scale, scale)."""

    scale: float = 0.07

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        return _symmetric(name, shape, dtype, seed, self.scale)


@register
@dataclass(frozen=True)
class Normal(Initializer):
    """Normal numbers with mean 0 and standard deviation sigma."""

    sigma: float = 0.01

    def fill(self, name: str, shape: Shape, dtype: npt.DTypeLike, seed: int) -> Array:
        return _gaussian(name, shape, dtype, seed, self.sigma)


@register
@dataclass(frozen=True)
class Orthogonal(Initializer):
    """scale times a matrix with orthonormal rows or columns, whichever are fewer.

    Taken from the singular vectors of a random matrix, rand_type "uniform" or "normal"; axes
    after the first count as one (Saxe, McClelland, Ganguli, arXiv:1312.6120).
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
        chosen = u if u.shape == matrix else v
        return (self.scale * chosen).reshape(shape).astype(dtype)


@register
@dataclass(frozen=True)
class Xavier(Initializer):
    """Random numbers of variance magnitude / 3 / n (uniform) or magnitude / n (gaussian).

    n is the fan-in (shape[1]), the fan-out (shape[0]) or their mean, by factor_type "in", "out"
    or "avg", times the size of the axes after these (Glorot and Bengio, AISTATS 2010).
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
    """Gaussian Xavier of magnitude 2 / (1 + slope**2) (He et al., arXiv:1502.01852)."""

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
    """Zero, but forget_bias for the second of the four gates (order i, f, c, o)."""

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
    """For each parameter the initialiser of the first pattern that its name begins with.

    Patterns are regular expressions (`mx.init.Mixed`). The initialiser chosen then goes by the
    end of the name, as always.
    """

    def __init__(
        self, patterns: Sequence[str], initializers: Sequence[str | Initializer | Mixed]
    ) -> None:
        if len(patterns) != len(initializers):
            raise GraphError(
                f"Mixed needs one initialiser a pattern: {len(patterns)} patterns, "
                f"{len(initializers)} initialisers"
            )
        try:
            found = [re.compile(pattern) for pattern in patterns]
        except re.error as error:
            raise GraphError(f"Mixed: {error.pattern!r} is no pattern: {error}") from None
        self._rules = list(zip(found, map(create, initializers), strict=True))

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


def create(initializer: str | Initializer | Mixed, **arguments: Any) -> Initializer | Mixed:
    """The initialiser itself, or a new one from its name or its `dumps()`.

    Names are in any case. Raises GraphError for an unknown name or argument, or something else.
    """
    function = callable(initializer) and not isinstance(initializer, type)
    if not function and not isinstance(initializer, str):
        raise GraphError(f"{initializer!r} is no initialiser: give one like Xavier(), or its name")
    return _load(initializer, arguments) if isinstance(initializer, str) else initializer


def _load(text: str, arguments: Mapping[str, Any]) -> Initializer:
    name = text
    if text.startswith("["):
        try:
            name, arguments = json.loads(text)
        except ValueError:
            raise GraphError(f"initialiser {text!r} is not JSON of [name, arguments]") from None
    name = _ALIASES.get(name.lower(), name.lower())
    if name not in INITIALIZERS:
        raise GraphError(f"unknown initialiser {name!r}: {nearest(name, INITIALIZERS)}")
    try:
        return INITIALIZERS[name](**arguments)
    except TypeError as error:
        raise GraphError(f"initialiser {name!r}: {error}") from error


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
            f"shape {shape}: give it another initialiser with Variable({name!r}, init=...)"
        )
