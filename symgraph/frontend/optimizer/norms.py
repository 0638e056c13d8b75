"""The global norm of gradients, and the factor that limits it."""

from __future__ import annotations

import math
from types import ModuleType

from symgraph.core.errors import ConfigError, RunError
from symgraph.core.types import Array
from symgraph.frontend.optimizer.rule import BLOCK


def sum_of_squares(xp: ModuleType, grad: Array) -> float:
    """Return the squared L2 norm of a gradient, added up in float64 in a fixed order."""
    flat = grad.reshape(-1)
    total = 0.0
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK].astype(xp.float64)
        block *= block
        total += float(block.sum())
    return total


def global_norm_scale(sum_of_squares: float, max_norm: float) -> float:
    """Return the factor of all gradients that limits their global L2 norm to max_norm.

    Args:
        sum_of_squares: over all parameters of all stages, each counted once.
        max_norm: the limit; a norm within it returns exactly 1.

    Raises:
        RunError: if the norm is not finite.
        ConfigError: if max_norm is not above 0.
    """
    if not max_norm > 0:
        raise ConfigError(f"the limit of the global norm is {max_norm} but must be above 0")
    if not math.isfinite(sum_of_squares):
        raise RunError(
            f"the sum of squares of all gradients is {sum_of_squares}: training has diverged; "
            f"lower the learning rate"
        )
    norm = math.sqrt(sum_of_squares)
    return 1.0 if norm <= max_norm else max_norm / norm
