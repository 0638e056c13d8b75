"""Random numbers that are a function of a key and a counter, and of nothing else.

Number i under a key is output i of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
number generators", OOPSLA 2014) seeded with that key. There is no state: any device may draw any
part of a stream, in any order and in pieces of any size, and gets the same numbers. `xp` is numpy
or cupy; both give the same bits and uniform numbers, and normal numbers that agree to rounding.
"""

from __future__ import annotations

import json
import math
from hashlib import blake2b
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from symgraph.core.errors import DTypeError

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_DIGITS = {"float16": 11, "float32": 24, "float64": 53}  # bits of the significand


def key(seed: int, *parts: str | int) -> int:
    """Return the 64-bit key of the stream that the seed and these words and numbers name."""
    text = json.dumps([int(seed), *(p if isinstance(p, str) else int(p) for p in parts)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def bits(xp: ModuleType, key: int, counters: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Draw 64 random bits (uint64) for each counter of an integer array."""
    # Mixed in place, so that a 0-d array stays one: numpy warns when scalars wrap around.
    z: npt.NDArray[Any] = xp.array(counters, dtype=xp.uint64)
    z *= xp.uint64(_GAMMA)
    z += xp.uint64((key + _GAMMA) & _MASK)
    z ^= z >> xp.uint64(30)
    z *= xp.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> xp.uint64(27)
    z *= xp.uint64(0x94D049BB133111EB)
    z ^= z >> xp.uint64(31)
    return z


def uniform(
    xp: ModuleType, key: int, counters: npt.NDArray[Any], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Draw numbers uniformly from [0, 1), in steps of 2**-24 (float32) or 2**-53 (float64).

    A float32 number is the float64 number of the same counter, cut short. Raises DTypeError for
    dtypes other than floats.
    """
    digits = _digits(dtype)
    raw = bits(xp, key, counters)
    raw >>= xp.uint64(64 - digits)
    number = raw.astype(dtype)
    number *= 2.0**-digits
    return number


def normal(
    xp: ModuleType, key: int, counters: npt.NDArray[Any], dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Draw from the standard normal distribution, by Box and Muller's method in float64.

    Raises DTypeError for dtypes other than floats.
    """
    _digits(dtype)
    radius = uniform(xp, key, counters, np.float64)
    angle = uniform(xp, _angle_key(key), counters, np.float64)
    xp.subtract(1.0, radius, out=radius)  # (0, 1], so that the logarithm is finite
    xp.log(radius, out=radius)
    radius *= -2.0
    xp.sqrt(radius, out=radius)
    angle *= 2.0 * math.pi
    xp.cos(angle, out=angle)
    radius *= angle
    return radius.astype(dtype)


def _angle_key(radius_key: int) -> int:
    return key(radius_key, "angle")


def _digits(dtype: npt.DTypeLike) -> int:
    name = np.dtype(dtype).name
    if name not in _DIGITS:
        raise DTypeError(f"no random numbers of type {name!r}: ask for one of {', '.join(_DIGITS)}")
    return _DIGITS[name]
