"""Rules with a step size for each element (equations: see rule.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from symgraph.core.types import Array
from symgraph.frontend.optimizer.rule import APART, Block, Now, Rule, add_product


def average(xp: ModuleType, mean: Array, new: Array, keep: float, spare: Array) -> None:
    """Set mean to keep * mean + (1 - keep) * new; spare is scratch."""
    mean *= keep
    add_product(xp, mean, new, 1.0 - keep, spare)


def average_square(xp: ModuleType, mean: Array, new: Array, keep: float, spare: Array) -> None:
    """Set mean to keep * mean + (1 - keep) * new**2; spare is scratch."""
    xp.multiply(new, new, out=spare)
    spare *= 1.0 - keep
    mean *= keep
    mean += spare


@dataclass
class _Adaptive(Rule):
    """A rule with decay rates of averages and an epsilon, each checked if the rule has it."""

    KEEPS: ClassVar[tuple[str, ...]] = ("beta1", "beta2")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.KEEPS:
            self._check(name, getattr(self, name), 1.0)
        for name in ("epsilon", "eps"):
            if hasattr(self, name):
                self._check(name, getattr(self, name), math.inf, above=True)


@dataclass
class Adam(_Adaptive):
    """Adam (`mx.optimizer.Adam`; Kingma and Ba, arXiv:1412.6980).

    d = clip(g + wd * w);  mean = beta1 * mean + (1 - beta1) * d
    var = beta2 * var + (1 - beta2) * d**2
    w = w - lr * sqrt(1 - beta2**t) / (1 - beta1**t) * mean / (sqrt(var) + epsilon)
    """

    DEFAULT_RATE: ClassVar[float] = 0.001

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    #: MXNet's choice for sparse gradients; those here are dense.
    lazy_update: bool = True

    def slots(self) -> tuple[str, ...]:
        return ("mean", "var")

    def _correction(self, update_count: int) -> float:
        return math.sqrt(1.0 - self.beta2**update_count) / (1.0 - self.beta1**update_count)

    def epsilon_at(self, update_count: int) -> float:
        """Return what is added to sqrt(var) at an update."""
        return self.epsilon

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        w, g, s, spare = block
        mean, var = s["mean"], s["var"]
        average(xp, mean, g, self.beta1, spare)
        g *= g
        average(xp, var, g, self.beta2, spare)
        xp.sqrt(var, out=spare)
        spare += self.epsilon_at(now.t)
        xp.divide(mean, spare, out=g)
        g *= now.lr
        w -= g


@dataclass
class AdamW(Adam):
    """Adam whose weight decay is not in its averages (`torch.optim.AdamW`; arXiv:1711.05101).

    mean = beta1 * mean + (1 - beta1) * clip(g);  var = beta2 * var + (1 - beta2) * clip(g)**2
    d = mean / (1 - beta1**t) / (sqrt(var / (1 - beta2**t)) + epsilon)
    w = w - lr * wd * w - lr * d
    """

    DECAY: ClassVar[str] = APART

    def epsilon_at(self, update_count: int) -> float:
        return self.epsilon * math.sqrt(1.0 - self.beta2**update_count)

    def step_rates(
        self, name: str, update_count: int, attrs: Mapping[str, str]
    ) -> tuple[float, float]:
        """Return the learning rate, corrected for this update, and the share that decays."""
        rate, decay = self.rates(name, update_count, attrs)
        return rate * self._correction(update_count), rate * decay

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        xp.multiply(block.w, now.wd, out=block.spare)
        block.w[...] -= block.spare
        super()._step(xp, block, now)


@dataclass
class Adamax(_Adaptive):
    """Adam with the infinity norm (`mx.optimizer.Adamax`; arXiv:1412.6980, section 7).

    d = clip(g + wd * w);  mean = beta1 * mean + (1 - beta1) * d
    norm = max(beta2 * norm, |d|);  w = w - lr / (1 - beta1**t) * mean / norm

    An element whose gradients were all 0 stays; in MXNet it becomes nan.
    """

    DEFAULT_RATE: ClassVar[float] = 0.002

    beta1: float = 0.9
    beta2: float = 0.999

    def slots(self) -> tuple[str, ...]:
        return ("mean", "norm")

    def _correction(self, update_count: int) -> float:
        return 1.0 / (1.0 - self.beta1**update_count)

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        w, g, s, spare = block
        mean, norm = s["mean"], s["norm"]
        average(xp, mean, g, self.beta1, spare)
        norm *= self.beta2
        xp.absolute(g, out=g)
        xp.maximum(norm, g, out=norm)
        xp.maximum(norm, float(xp.finfo(norm.dtype).tiny), out=spare)
        xp.divide(mean, spare, out=g)
        g *= now.lr
        w -= g


@dataclass
class Nadam(_Adaptive):
    """Adam with Nesterov's momentum (`mx.optimizer.Nadam`; Dozat, ICLR workshop 2016).

    d = clip(g + wd * w);  m(t) = beta1 * (1 - 0.96**(t * schedule_decay) / 2);  M(t) = m(1)...m(t)
    mean = beta1 * mean + (1 - beta1) * d;  var = beta2 * var + (1 - beta2) * d**2
    step = (1 - m(t)) * d / (1 - M(t)) + m(t+1) * mean / (1 - M(t+1))
    w = w - lr * step / (sqrt(var / (1 - beta2**t)) + epsilon)

    MXNet multiplies M once for each parameter of a network; here t is the number of the update.
    """

    DEFAULT_RATE: ClassVar[float] = 0.001

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    schedule_decay: float = 0.004

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("schedule_decay", self.schedule_decay, math.inf)

    def slots(self) -> tuple[str, ...]:
        return ("mean", "var")

    def _momentum(self, t: int) -> float:
        return self.beta1 * (1.0 - 0.5 * math.pow(0.96, t * self.schedule_decay))

    def _schedule(self, t: int) -> float:
        """Return M(t); factors that can change 1 - M(t) no more are left out."""
        product = 1.0
        for step in range(1, t + 1):
            product *= self._momentum(step)
            if product < 1e-20:
                break
        return product

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        w, g, s, spare = block
        mean, var = s["mean"], s["var"]
        here, ahead, done = self._momentum(now.t), self._momentum(now.t + 1), self._schedule(now.t)
        average(xp, mean, g, self.beta1, spare)
        average_square(xp, var, g, self.beta2, spare)
        g *= (1.0 - here) / (1.0 - done)
        add_product(xp, g, mean, ahead / (1.0 - done * ahead), spare)
        xp.multiply(var, 1.0 / (1.0 - self.beta2**now.t), out=spare)
        xp.sqrt(spare, out=spare)
        spare += self.epsilon
        g /= spare
        g *= now.lr
        w -= g


@dataclass
class RMSProp(_Adaptive):
    """RMSProp (`mx.optimizer.RMSProp`): Tieleman and Hinton's, or Graves's if `centered`.

    d = clip(g + wd * w);  n = gamma1 * n + (1 - gamma1) * d**2
    plain:     w = w - lr * d / sqrt(n + epsilon)
    centered:  mean = gamma1 * mean + (1 - gamma1) * d
               delta = gamma2 * delta - lr * d / sqrt(max(n - mean**2, 0) + epsilon)
               w = w + delta                      (arXiv:1308.0850, equations 38 to 45)

    Without the max(), as in MXNet, a steady gradient rounds the variance below zero: nan.
    """

    DEFAULT_RATE: ClassVar[float] = 0.001
    KEEPS: ClassVar[tuple[str, ...]] = ("gamma1", "gamma2")

    gamma1: float = 0.9
    gamma2: float = 0.9
    epsilon: float = 1e-8
    centered: bool = False
    #: Limit of each element of the weight; None: none.
    clip_weights: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_weights is not None:
            self._check("clip_weights", self.clip_weights, math.inf, above=True)

    def slots(self) -> tuple[str, ...]:
        return ("n", "mean", "delta") if self.centered else ("n",)

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        w, g, s, spare = block
        n = s["n"]
        average_square(xp, n, g, self.gamma1, spare)
        if self.centered:
            mean = s["mean"]
            average(xp, mean, g, self.gamma1, spare)
            xp.multiply(mean, mean, out=spare)
            xp.subtract(n, spare, out=spare)
            xp.maximum(spare, 0.0, out=spare)
            spare += self.epsilon
        else:
            xp.add(n, self.epsilon, out=spare)
        xp.sqrt(spare, out=spare)
        g /= spare
        g *= now.lr
        if self.centered:
            delta = s["delta"]
            delta *= self.gamma2
            delta -= g
            w += delta
        else:
            w -= g
        if self.clip_weights is not None:
            xp.clip(w, -self.clip_weights, self.clip_weights, out=w)


@dataclass
class AdaGrad(_Adaptive):
    """AdaGrad (`mx.optimizer.AdaGrad`; Duchi, Hazan and Singer, JMLR 12, 2011).

    history = history + clip(g)**2
    w = w - lr * (clip(g) / sqrt(history + eps) + wd * w)
    """

    DECAY: ClassVar[str] = APART
    KEEPS: ClassVar[tuple[str, ...]] = ()

    eps: float = 1e-7

    def slots(self) -> tuple[str, ...]:
        return ("history",)

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        w, g, s, spare = block
        history = s["history"]
        xp.multiply(g, g, out=spare)
        history += spare
        xp.add(history, self.eps, out=spare)
        xp.sqrt(spare, out=spare)
        g /= spare
        add_product(xp, g, w, now.wd, spare)
        g *= now.lr
        w -= g


@dataclass
class AdaDelta(_Adaptive):
    """AdaDelta, which has no learning rate (`mx.optimizer.AdaDelta`; arXiv:1212.5701).

    grads = rho * grads + (1 - rho) * clip(g)**2
    d = sqrt(deltas + epsilon) / sqrt(grads + epsilon) * clip(g)
    deltas = rho * deltas + (1 - rho) * d**2;  w = w - (d + wd * w)

    A parameter whose rate is 0 stays, whatever else the rate is.
    """

    DECAY: ClassVar[str] = APART
    KEEPS: ClassVar[tuple[str, ...]] = ("rho",)

    rho: float = 0.9
    epsilon: float = 1e-5

    def slots(self) -> tuple[str, ...]:
        return ("grads", "deltas")

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        if not now.lr:
            return
        w, g, s, spare = block
        grads, deltas = s["grads"], s["deltas"]
        average_square(xp, grads, g, self.rho, spare)
        xp.add(deltas, self.epsilon, out=spare)
        xp.sqrt(spare, out=spare)
        g *= spare
        xp.add(grads, self.epsilon, out=spare)
        xp.sqrt(spare, out=spare)
        g /= spare
        average_square(xp, deltas, g, self.rho, spare)
        add_product(xp, g, w, now.wd, spare)
        w -= g
