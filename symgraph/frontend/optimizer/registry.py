"""Optimizers by name."""

from __future__ import annotations

import warnings
from inspect import Parameter, signature
from typing import Any, TypeVar

from symgraph.core.errors import ConfigError, nearest
from symgraph.frontend.optimizer.adaptive import (
    AdaDelta,
    AdaGrad,
    Adam,
    Adamax,
    AdamW,
    Nadam,
    RMSProp,
)
from symgraph.frontend.optimizer.base import Optimizer
from symgraph.frontend.optimizer.descent import NAG, SGD, SGLD, Signum
from symgraph.frontend.optimizer.leaders import FTML, LAMB, Ftrl

Kind = TypeVar("Kind", bound=type[Optimizer])

OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.__name__.lower(): kind
    for kind in (
        SGD,
        NAG,
        Adam,
        AdamW,
        RMSProp,
        AdaDelta,
        AdaGrad,
        Adamax,
        FTML,
        Ftrl,
        LAMB,
        Nadam,
        SGLD,
        Signum,
    )
}
OPTIMIZERS["ccsgd"] = SGD  # MXNet's old name


def register(kind: Kind) -> Kind:
    """Register an optimizer under its class's name in lower case (`mx.optimizer.register`).

    One of that name is replaced, with a warning.
    """
    name = kind.__name__.lower()
    if name in OPTIMIZERS:
        warnings.warn(f"optimizer {name!r} is replaced by {kind.__module__}", stacklevel=2)
    OPTIMIZERS[name] = kind
    return kind


def create(name: str | Optimizer, **settings: Any) -> Optimizer:
    """Make an optimizer by its name in any case (`mx.optimizer.create`); return one unchanged.

    Raises ConfigError for an unknown name or setting.
    """
    if isinstance(name, Optimizer):
        return name
    kind = OPTIMIZERS.get(str(name).lower())
    if kind is None:
        raise ConfigError(f"unknown optimizer {name!r}: {nearest(str(name).lower(), OPTIMIZERS)}")
    accepted = signature(kind).parameters
    anything = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in accepted.values())
    for word in () if anything else settings:
        if word not in accepted:
            raise ConfigError(
                f"optimizer {name!r} has no setting {word!r}: {nearest(word, accepted)}"
            )
    try:
        return kind(**settings)
    except TypeError as error:
        raise ConfigError(f"optimizer {name!r}: {error}") from error
