"""Modules in Python: a step of a SequentialModule that is no network (MXNet's PythonModule)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from runtime.frontends.mxnet.arguments import as_batch, descriptions, require_names
from runtime.frontends.mxnet.base_module import (
    RATE,
    BaseModule,
    Params,
    Settings,
    Store,
    per_context,
)
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.types import Array
from symgraph.frontend.init import AnyInitializer, Uniform
from symgraph.frontend.io import DataDesc
from symgraph.frontend.monitor import Monitor
from symgraph.frontend.ndarray import NDArray, array
from symgraph.frontend.optimizer import Optimizer

Gradient = Callable[[Any, Any], Any]


class PythonModule(BaseModule):
    """A module without parameters whose subclass computes, in Python (MXNet PythonModule).

    A subclass has `_compute_output_shapes`, `forward`, `backward`, `get_outputs` and
    `get_input_grads`; `_data_shapes` and `_label_shapes` are what it is bound to.
    """

    def __init__(
        self,
        data_names: Sequence[str],
        label_names: Sequence[str] | None,
        output_names: Sequence[str],
        logger: Any = logging,
    ) -> None:
        """Make a module; the names of its inputs, labels and outputs."""
        super().__init__(logger)
        self._data_names, self._label_names = list(data_names), list(label_names or ())
        self._output_names = list(output_names)
        self._data_shapes: list[DataDesc] = []
        self._label_shapes: list[DataDesc] = []
        self._output_shapes: list[tuple[str, Any]] = []

    @property
    def data_names(self) -> list[str]:
        """The names of the inputs."""
        return self._data_names

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs."""
        return self._output_names

    @property
    def data_shapes(self) -> list[DataDesc]:
        """The inputs as they were bound."""
        return self._data_shapes

    @property
    def label_shapes(self) -> list[DataDesc]:
        """The labels as they were bound."""
        return self._label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, Any]]:
        """(name, shape) of each output."""
        return self._output_shapes

    def bind(
        self,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: str | Sequence[str] | Mapping[str, str] = "write",
    ) -> None:
        """Prepare for batches of these shapes.

        Raises ConfigError for a grad_req other than "write", GraphError for other names.
        """
        if self.binded and not force_rebind:
            return
        if grad_req != "write":
            raise ConfigError(f"grad_req is {grad_req!r}, but a PythonModule only knows 'write'")
        data = descriptions("data_shapes", data_shapes)
        labels = descriptions("label_shapes", label_shapes)
        require_names("data_shapes", data, self._data_names)
        if labels:
            require_names("label_shapes", labels, self._label_names)
        self._data_shapes, self._label_shapes = data, labels
        flags = {"for_training": for_training, "inputs_need_grad": inputs_need_grad}
        vars(self).update(binded=True, **flags)
        self._output_shapes = self._compute_output_shapes()

    def _compute_output_shapes(self) -> list[tuple[str, Any]]:
        """(name, shape) of each output, for the bound inputs."""
        raise NotImplementedError(f"{type(self).__name__} has no _compute_output_shapes")

    def init_params(
        self,
        initializer: AnyInitializer | None = Uniform(0.01),  # noqa: B008
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Do nothing, since there are no parameters."""

    def init_optimizer(
        self,
        kvstore: Store = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: Settings = RATE,
        force_init: bool = False,
    ) -> None:
        """Do nothing, since there are no parameters."""

    def get_params(self) -> tuple[Params, Params]:
        """Two empty dicts."""
        return {}, {}

    def update(self) -> None:
        """Do nothing, since there are no parameters."""

    def install_monitor(self, mon: Monitor) -> None:
        """Do nothing, since there is no network to look into."""


class PythonLossModule(PythonModule):
    """A loss whose gradient is a function in Python (MXNet PythonLossModule).

    Its output is its input, the scores.
    """

    def __init__(
        self,
        name: str = "pyloss",
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] = ("softmax_label",),
        logger: Any = logging,
        grad_func: Gradient | None = None,
    ) -> None:
        """Make a loss.

        Args:
            name: The output is called `<name>_output`.
            data_names: The name of the scores.
            label_names: The name of the labels.
            logger: Where `fit` logs.
            grad_func: (scores, labels) -> the gradient of the scores; without it, a subclass has
                `_backward_impl`, which sets `_scores_grad`.
        """
        super().__init__(data_names, label_names, [f"{name}_output"], logger)
        if len(self._data_names) != 1 or len(self._label_names) != 1:
            raise ConfigError("a PythonLossModule has one data name and one label name")
        if grad_func is not None and not callable(grad_func):
            raise TypeError(f"grad_func is a function of scores and labels, not {grad_func!r}")
        self._grad_func = grad_func
        self._scores: Any = None
        self._labels: Any = None
        self._scores_grad: Any = None

    def _compute_output_shapes(self) -> list[tuple[str, Any]]:
        return [(self._output_names[0], self._data_shapes[0].shape)]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Keep the scores, and in training the labels."""
        batch = as_batch(data_batch)
        self._scores = _ndarray(batch.data[0])
        if self.for_training if is_train is None else is_train:
            if not batch.label:
                raise RunError("forward: a batch for training has no labels")
            self._labels = _ndarray(batch.label[0])

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The scores."""
        return per_context([self._scores], merge_multi_context)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradient of the scores; a loss takes no head gradients."""
        if out_grads is not None or self._labels is None:
            raise RunError("backward of a loss takes no out_grads, after forward(is_train=True)")
        self._backward_impl()

    def _backward_impl(self) -> None:
        if self._grad_func is None:
            raise ConfigError(f"{self._output_names[0]}: give grad_func, or define _backward_impl")
        self._scores_grad = _ndarray(self._grad_func(self._scores, self._labels))

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradient of the scores."""
        return per_context([self._scores_grad], merge_multi_context)


def _ndarray(values: Any) -> Array:
    return values if isinstance(values, NDArray) else array(values, dtype=np.asarray(values).dtype)
