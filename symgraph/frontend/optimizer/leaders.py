"""Rules that follow the (regularized) leader, and LAMB, which scales steps by norms of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from symgraph.core.types import Array
from symgraph.frontend.optimizer.adaptive import _Adaptive, average, average_square
from symgraph.frontend.optimizer.norms import sum_of_squares
from symgraph.frontend.optimizer.rule import APART, Block, Now, Rule, add_product


@dataclass
class Ftrl(Rule):
    """Follow the regularized leader (`mx.optimizer.Ftrl`; McMahan et al., KDD 2013).

    z = z + clip(g) - (sqrt(n + clip(g)**2) - sqrt(n)) * w / lr;  n = n + clip(g)**2
    w = (sign(z) * lamda1 - z) / ((beta + sqrt(n)) / lr + wd) where |z| > lamda1, else 0

    A parameter whose rate is 0 stays.
    """

    DECAY: ClassVar[str] = APART

    DEFAULT_RATE: ClassVar[float] = 0.1

    #: Coefficient of the L1 norm, in MXNet's spelling.
    lamda1: float = 0.01
    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("lamda1", self.lamda1, math.inf)
        self._check("beta", self.beta, math.inf)

    def slots(self) -> tuple[str, ...]:
        return ("z", "n")

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        if not now.lr:
            return
        w, g, s, spare = block
        z, n = s["z"], s["n"]
        z += g
        xp.sqrt(n, out=spare)
        g *= g
        n += g
        xp.sqrt(n, out=g)
        spare -= g
        spare *= 1.0 / now.lr
        spare *= w
        z += spare
        g += self.beta
        g *= 1.0 / now.lr
        g += now.wd
        # sign(z) * lamda1 - z where |z| > lamda1, else 0: minus what a threshold leaves of z.
        xp.clip(z, -self.lamda1, self.lamda1, out=w)
        w -= z
        w /= g


@dataclass
class FTML(_Adaptive):
    """Follow the moving leader (`mx.optimizer.FTML`; Zheng and Kwok, ICML 2017).

    g = clip(g + wd * w);  v = beta2 * v + (1 - beta2) * g**2
    new_d = (1 - beta1**t) / lr * (sqrt(v / (1 - beta2**t)) + epsilon)
    z = beta1 * z + (1 - beta1) * g - (new_d - beta1 * d) * w;  d = new_d;  w = -z / d

    A parameter whose rate is 0 stays.
    """

    beta1: float = 0.6
    beta2: float = 0.999
    epsilon: float = 1e-8

    def slots(self) -> tuple[str, ...]:
        return ("d", "v", "z")

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        if not now.lr:
            return
        w, g, s, spare = block
        d, v, z = s["d"], s["v"], s["z"]
        average_square(xp, v, g, self.beta2, spare)
        average(xp, z, g, self.beta1, spare)
        xp.multiply(v, 1.0 / (1.0 - self.beta2**now.t), out=spare)
        xp.sqrt(spare, out=spare)
        spare += self.epsilon
        spare *= (1.0 - self.beta1**now.t) / now.lr  # new_d
        d *= self.beta1
        xp.subtract(spare, d, out=g)
        g *= w
        z -= g
        d[...] = spare
        xp.divide(z, d, out=w)
        xp.negative(w, out=w)


@dataclass
class LAMB(_Adaptive):
    """Adam with steps as long as the layer's weights (`mx.optimizer.LAMB`; arXiv:1904.00962).

    mean = beta1 * mean + (1 - beta1) * clip(g);  var = beta2 * var + (1 - beta2) * clip(g)**2
    d = mean / (1 - beta1**t) / (sqrt(var / (1 - beta2**t)) + epsilon) + wd * w
    w = w - lr * |w| / |d| * d

    The norms are of the whole parameter; a ratio with a norm of 0 is 1. |w| is limited to
    lower_bound and upper_bound if they are set.
    """

    DECAY: ClassVar[str] = APART

    DEFAULT_RATE: ClassVar[float] = 0.001

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    lower_bound: float | None = None
    upper_bound: float | None = None
    #: Whether the averages are divided by 1 - beta**t.
    bias_correction: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower_bound is not None:
            self._check("lower_bound", self.lower_bound, math.inf)
        if self.upper_bound is not None:
            self._check("upper_bound", self.upper_bound, math.inf, above=True)

    def slots(self) -> tuple[str, ...]:
        return ("mean", "var")

    def _compute(
        self,
        xp: ModuleType,
        name: str,
        arrays: tuple[Array, Array, Mapping[str, Array]],
        factor: float,
        now: Now,
    ) -> None:
        """Make the averages and the norm of d, then d again, so that no array holds all of it."""
        weights = sum_of_squares(xp, arrays[0])
        steps = 0.0
        for _, block in self._blocks(xp, arrays, factor, now):
            average(xp, block.s["mean"], block.g, self.beta1, block.spare)
            average_square(xp, block.s["var"], block.g, self.beta2, block.spare)
            self._direction(xp, block, now)
            steps += sum_of_squares(xp, block.g)
        rate = now.lr * self._ratio(math.sqrt(weights), math.sqrt(steps))
        for _, block in self._blocks(xp, arrays, factor, now):
            self._direction(xp, block, now)
            self._step(xp, block, now._replace(lr=rate))

    def _direction(self, xp: ModuleType, block: Block, now: Now) -> None:
        """Set g to d."""
        w, g, s, spare = block
        first = second = 1.0
        if self.bias_correction:
            first, second = 1.0 - self.beta1**now.t, 1.0 - self.beta2**now.t
        xp.multiply(s["var"], 1.0 / second, out=spare)
        xp.sqrt(spare, out=spare)
        spare += self.epsilon
        xp.multiply(s["mean"], 1.0 / first, out=g)
        g /= spare
        add_product(xp, g, w, now.wd, spare)

    def _ratio(self, weights: float, steps: float) -> float:
        if self.lower_bound is not None:
            weights = max(weights, self.lower_bound)
        if self.upper_bound is not None:
            weights = min(weights, self.upper_bound)
        return weights / steps if weights and steps else 1.0

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        block.g[...] *= now.lr
        block.w[...] -= block.g
