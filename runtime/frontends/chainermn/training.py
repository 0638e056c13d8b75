"""Optimizers and metrics over all ranks, for programs that run once per rank (ChainerMN)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from runtime.backends.device.arrays import beside, module_of
from runtime.frontends.chainermn.communicator import Communicator
from runtime.training.checkpoints.state import OPTIMIZER
from symgraph.core.errors import RunError
from symgraph.core.types import Array
from symgraph.frontend.metric import EvalMetric
from symgraph.frontend.optimizer import Optimizer


class MultiNodeOptimizer:
    """An optimizer that averages gradients over all ranks before each update.

    Call `setup` once, before the first forward: it copies the weights of rank 0 to all ranks. So
    the first `update` already updates (ChainerMN's first one only broadcasts the weights).
    """

    def __init__(self, optimizer: Optimizer, comm: Communicator) -> None:
        self.optimizer = optimizer
        self._comm = comm
        self._count = np.zeros((), np.int64)
        self._states: dict[str, dict[str, Array]] = {}
        self._params: dict[str, Array] = {}

    def setup(self, params: Mapping[str, Array]) -> None:
        """Overwrite these parameters with rank 0's; later updates change them in place."""
        self._params, self._states = dict(params), {}
        self._comm.bcast_data(self._params)
        for name, array in sorted(params.items()):
            with beside(array):
                self._states[name] = self.optimizer.state(name, array)

    @property
    def count(self) -> int:
        """The number of updates so far."""
        return int(self._count)

    def arrays(self) -> dict[str, Array]:
        """Return the arrays to save in a checkpoint: parameters, optimizer states and the count.

        They are the arrays themselves, not copies, under the names that checkpoints use.
        """
        states = {
            OPTIMIZER.format(name) + slot: array
            for name, slots in self._states.items()
            for slot, array in slots.items()
        }
        return {**self._params, **states, "updates": self._count}

    def update(self, grads: Mapping[str, Array | None]) -> None:
        """Update the parameters with the gradients' means, which overwrite the gradients.

        A gradient that is None or missing counts as zeros.
        """
        if not self._params:
            raise RunError("a multi-node optimizer has no parameters yet: call setup first")
        given = {name: grads.get(name) for name in self._params}
        means = self._comm.multi_node_mean_grad(given, self._params)
        self._count += 1
        for name, mean in means.items():
            weight, state = self._params[name], self._states[name]
            with beside(weight):
                xp = module_of(weight)
                self.optimizer.apply(xp, name, weight, mean, state, self.count)


def create_multi_node_optimizer(
    actual_optimizer: Optimizer, communicator: Communicator
) -> MultiNodeOptimizer:
    """Wrap an optimizer so that it averages gradients over all ranks (ChainerMN)."""
    return MultiNodeOptimizer(actual_optimizer, communicator)


class MultiNodeEvaluator:
    """A metric over the samples of all ranks: the total sum divided by the total count.

    ChainerMN averages the ranks' means instead, so a sample on a rank with few samples weighs more.
    """

    def __init__(self, metric: EvalMetric, comm: Communicator) -> None:
        self.metric, self._comm = metric, comm

    def update(self, labels: Array, preds: Array) -> None:
        """Add samples of this rank to the metric."""
        self.metric.update(labels, preds)

    def get(self) -> tuple[Any, Any]:
        """Return name and value over all ranks since the last `reset`; every rank must call it.

        For a composite metric both are lists.
        """
        mine = [(metric.sum_metric, metric.num_inst) for metric in self.metric.parts]
        whole = deepcopy(self.metric)
        whole.reset()
        names = [metric.name for metric in self.metric.parts]
        self._comm.require_same("a multi-node evaluator", {"metrics": names})
        for sums in self._comm.allgather_obj(mine):
            for metric, (total, count) in zip(whole.parts, sums, strict=True):
                if count:
                    metric.accumulate(total, count)
        return whole.get()

    def reset(self) -> None:
        self.metric.reset()


def create_multi_node_evaluator(
    actual_evaluator: EvalMetric, communicator: Communicator
) -> MultiNodeEvaluator:
    """Wrap a metric of `sg.metric` so that it covers the samples of all ranks (ChainerMN)."""
    return MultiNodeEvaluator(actual_evaluator, communicator)
