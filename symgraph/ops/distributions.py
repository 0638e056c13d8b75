"""Distributions: from random bits with numbers of their own to values, element by element.

A value is a function of the stream's key, the element's number and the parameters, so it is the
same in a micro-batch of any size. What a rejection method rejects is drawn again under another key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

from symgraph.core.rand import key, normal, uniform
from symgraph.core.types import Array

Parameters = Mapping[str, Any]  # numbers, or arrays that broadcast against the numbers drawn for
TINY = 2.0**-1022  # the smallest positive number
SMALL_MEAN = 10.0  # of a Poisson distribution: below it, probabilities are added up


class Stream(NamedTuple):
    """Random numbers for some elements."""

    #: The array module.
    xp: Any
    #: The key of all its numbers.
    key: int
    #: The elements' numbers.
    numbers: Array

    def child(self, *words: str | int) -> Stream:
        """Return a stream of other numbers for the same elements."""
        return self._replace(key=key(self.key, *words))

    def uniform(self) -> Array:
        """Draw from [0, 1), in float64."""
        return uniform(self.xp, self.key, self.numbers, "float64")

    def above_zero(self) -> Array:
        """Draw from (0, 1], in float64."""
        drawn: Array = 1.0 - self.uniform()
        return drawn

    def normal(self) -> Array:
        """Draw from the standard normal distribution, in float64."""
        return normal(self.xp, self.key, self.numbers, "float64")


Draw = Callable[[Stream, Parameters], Array]
Trial = Callable[..., tuple[Array, Array]]  # (stream, parameters) -> (values, whether they count)


def accepted(stream: Stream, trial: Trial, *given: Any) -> Array:
    """Repeat a trial for those elements whose values it rejects."""
    xp, shape = stream.xp, stream.numbers.shape
    numbers = stream.numbers.reshape(-1)
    flat = [xp.broadcast_to(xp.asarray(g, "float64"), shape).reshape(-1) for g in given]
    found = xp.zeros(numbers.size, "float64")
    left = xp.arange(numbers.size)
    for attempt in count():
        if not left.size:
            break
        part = Stream(xp, key(stream.key, attempt), numbers[left])
        values, counts = trial(part, *(f[left] for f in flat))
        found[left[counts]] = values[counts]
        left = left[~counts]
    whole: Array = found.reshape(shape)
    return whole


def uniform_values(stream: Stream, a: Parameters) -> Array:
    drawn: Array = stream.uniform() * (a["high"] - a["low"]) + a["low"]
    return drawn


def normal_values(stream: Stream, a: Parameters) -> Array:
    drawn: Array = stream.normal() * a["scale"] + a["loc"]
    return drawn


def exponential_values(stream: Stream, a: Parameters) -> Array:
    drawn: Array = -stream.xp.log(stream.above_zero()) / a["lam"]
    return drawn


def gamma_trial(stream: Stream, shape: Array) -> tuple[Array, Array]:
    """Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); shape >= 1."""
    xp, d = stream.xp, shape - 1 / 3
    x = stream.child("normal").normal()
    v = (1 + x / xp.sqrt(9 * d)) ** 3
    bound = 0.5 * x * x + d - d * v + d * xp.log(xp.maximum(v, TINY))
    return d * v, (v > 0) & (xp.log(stream.child("uniform").above_zero()) < bound)


def standard_gamma(stream: Stream, shape: Any) -> Array:
    """Draw for a scale of 1; shapes below 1 by a power of a number drawn for shape + 1.

    A shape of 0 gives 0.
    """
    xp = stream.xp
    shape = xp.asarray(shape, "float64")
    small = shape < 1
    drawn = accepted(stream, gamma_trial, shape + small)
    power = xp.where(small, 1 / xp.maximum(shape, TINY), 0.0)
    lowered: Array = drawn * stream.child("power").above_zero() ** power
    return lowered


def gamma_values(stream: Stream, a: Parameters) -> Array:
    drawn: Array = standard_gamma(stream, a["alpha"]) * a["beta"]
    return drawn


def log_factorial(xp: Any, k: Array) -> Array:
    """Return log(k!) by Stirling's series at k + 8, accurate to 1e-11, for k of 0 or more."""
    product = xp.ones_like(k)
    for i in range(1, 8):
        product *= k + i
    z = k + 8
    series = 1 / (12 * z) - 1 / (360 * z**3) + 1 / (1260 * z**5)
    stirling = (z - 0.5) * xp.log(z) - z + 0.5 * math.log(2 * math.pi) + series
    found: Array = stirling - xp.log(product)
    return found


def poisson_trial(stream: Stream, mean: Array) -> tuple[Array, Array]:
    """Hormann, "The transformed rejection method for Poisson variables", PTRS (1993)."""
    xp = stream.xp
    b = 0.931 + 2.53 * xp.sqrt(mean)
    a = -0.059 + 0.02483 * b
    u = stream.child("u").uniform() - 0.5
    v = stream.child("v").above_zero()
    us = xp.maximum(0.5 - abs(u), TINY)
    k = xp.floor((2 * a / us + b) * u + mean + 0.43)
    quick = (us >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    left = xp.log(v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b))
    right = k * xp.log(mean) - mean - log_factorial(xp, xp.maximum(k, 0.0))
    return k, quick | ((k >= 0) & ((us >= 0.013) | (v <= us)) & (left <= right))


def poisson_counts(stream: Stream, mean: Any) -> Array:
    """Draw counts: for small means by adding up probabilities until they reach a number."""
    xp = stream.xp
    mean = xp.broadcast_to(xp.asarray(mean, "float64"), stream.numbers.shape)
    small = mean < SMALL_MEAN
    large = accepted(stream.child("large"), poisson_trial, xp.maximum(mean, SMALL_MEAN))
    few = xp.where(small, mean, 0.0)
    probability, drawn = xp.exp(-few), stream.uniform()
    total, counts = probability.copy(), xp.zeros(few.shape, "float64")
    for k in range(1, 60):  # P(60 or more) < 1e-26 for a mean of 10
        counts += drawn >= total
        probability = probability * few / k
        total += probability
    found: Array = xp.where(small, counts, large)
    return found


def poisson_values(stream: Stream, a: Parameters) -> Array:
    return poisson_counts(stream, a["lam"])


def negative_binomial_values(stream: Stream, a: Parameters) -> Array:
    """A Poisson count whose mean is drawn from a gamma distribution."""
    odds = (1.0 - a["p"]) / a["p"]
    return poisson_counts(stream.child("count"), standard_gamma(stream, a["k"]) * odds)


def generalized_values(stream: Stream, a: Parameters) -> Array:
    """As the negative binomial distribution, by mean and dispersion; Poisson without dispersion."""
    xp = stream.xp
    alpha = xp.asarray(a["alpha"], "float64")
    spread = xp.where(alpha > 0, alpha, 1.0)
    mean = standard_gamma(stream, 1 / spread) * spread * a["mu"]
    plain = xp.zeros_like(mean) + a["mu"]
    return poisson_counts(stream.child("count"), xp.where(alpha > 0, mean, plain))
