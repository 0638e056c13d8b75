"""Optimizers: update rules of weights, and clipping of gradients by their global norm (MXNet's).

Names, equations, arguments and defaults are MXNet 1.9's.
May import core and frontend's own files.
Start reading: base.py, then rule.py; registry.py has them by name.
"""

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
from symgraph.frontend.optimizer.norms import global_norm_scale, sum_of_squares
from symgraph.frontend.optimizer.registry import OPTIMIZERS, create, register
from symgraph.frontend.optimizer.rule import BLOCK, Rule
from symgraph.frontend.optimizer.updater import Updater, get_updater

__all__ = [
    "BLOCK",
    "FTML",
    "LAMB",
    "NAG",
    "OPTIMIZERS",
    "SGD",
    "SGLD",
    "AdaDelta",
    "AdaGrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Nadam",
    "Optimizer",
    "RMSProp",
    "Rule",
    "Signum",
    "Updater",
    "create",
    "get_updater",
    "global_norm_scale",
    "register",
    "sum_of_squares",
]
