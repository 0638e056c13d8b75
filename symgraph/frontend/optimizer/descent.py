"""Descent along the gradient, its momentum or its sign (equations: see rule.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar

from symgraph.core import rand
from symgraph.core.types import Array
from symgraph.frontend.optimizer.rule import ADDED, Block, Now, Rule, add_product


@dataclass
class SGD(Rule):
    """Stochastic gradient descent with momentum (`mx.optimizer.SGD`).

    mom = momentum * mom - lr * (clip(g) + wd * w);  w = w + mom
    """

    DECAY: ClassVar[str] = ADDED
    COPY_LAST: ClassVar[bool] = True

    momentum: float = 0.0
    #: MXNet's choice for sparse gradients; those here are dense.
    lazy_update: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", self.momentum, 1.0)

    def slots(self) -> tuple[str, ...]:
        return ("mom",) if self.momentum else ()

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        w, g, s, _ = block
        g *= now.lr
        if not self.momentum:
            w -= g
            return
        mom = s["mom"]
        mom *= self.momentum
        mom -= g
        w += mom


@dataclass
class NAG(SGD):
    """Nesterov's accelerated gradient (`mx.optimizer.NAG`).

    d = lr * (clip(g) + wd * w);  mom = momentum * mom - d;  w = w + momentum * mom - d

    MXNet 1.9.1 computes mom with the weight that it has just changed; 1.2.1 does as here.
    """

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        w, g, s, spare = block
        g *= now.lr
        w -= g
        if self.momentum:
            mom = s["mom"]
            mom *= self.momentum
            mom -= g
            add_product(xp, w, mom, self.momentum, spare)


@dataclass
class Signum(Rule):
    """Descent along the sign of the momentum (`mx.optimizer.Signum`, arXiv:1802.04434).

    mom = momentum * mom - (1 - momentum) * (clip(g) + wd * w)
    w = (1 - lr * wd_lh) * w + lr * sign(mom)

    Without momentum, w = (1 - lr * wd) * w - lr * sign(g).
    """

    momentum: float = 0.9
    #: Decay of the weight by itself, apart from the gradient (arXiv:1711.05101).
    wd_lh: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("momentum", self.momentum, 1.0)
        self._check("wd_lh", self.wd_lh, math.inf)

    def slots(self) -> tuple[str, ...]:
        return ("mom",) if self.momentum else ()

    def _prepare(self, xp: ModuleType, block: Block, wd: float) -> None:
        """Set g to clip(g) + wd * w, or to clip(g) without momentum."""
        self._clip(xp, block.g)
        if self.momentum:
            add_product(xp, block.g, block.w, wd, block.spare)

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        w, g, s, _ = block
        decay = self.wd_lh
        if self.momentum:
            mom = s["mom"]
            mom *= self.momentum
            g *= 1.0 - self.momentum
            mom -= g
            xp.sign(mom, out=g)
        else:
            decay = now.wd
            xp.sign(g, out=g)
            xp.negative(g, out=g)
        w *= 1.0 - now.lr * decay
        g *= now.lr
        w += g


@dataclass
class SGLD(Rule):
    """Stochastic gradient Langevin dynamics: descent with noise (`mx.optimizer.SGLD`).

    w = w - lr / 2 * (clip(g) + wd * w) + sqrt(lr) * n, where n is normal noise, a function of the
    seed, the parameter's name and the number of the update.
    """

    DECAY: ClassVar[str] = ADDED

    #: Seed of the noise.
    seed: int = 0

    def slots(self) -> tuple[str, ...]:
        return ()

    def _compute(
        self,
        xp: ModuleType,
        name: str,
        arrays: tuple[Array, Array, Mapping[str, Array]],
        factor: float,
        now: Now,
    ) -> None:
        key = rand.key(self.seed, "sgld", name, now.t)
        for start, block in self._blocks(xp, arrays, factor, now):
            self._step(xp, block, now)
            places = xp.arange(start, start + block.w.size, dtype="uint64")
            noise = rand.normal(xp, key, places, block.w.dtype)
            add_product(xp, block.w, noise, math.sqrt(now.lr), block.spare)

    def _step(self, xp: ModuleType, block: Block, now: Now) -> None:
        add_product(xp, block.w, block.g, -now.lr / 2.0, block.spare)
