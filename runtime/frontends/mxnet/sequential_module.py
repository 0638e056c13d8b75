"""The sequential module: modules in a row, each with the outputs of the one before as data."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from runtime.frontends.mxnet.arguments import as_batch, descriptions
from runtime.frontends.mxnet.base_module import (
    RATE,
    BaseModule,
    Params,
    Settings,
    Store,
    show_batch,
)
from symgraph.core.batch_layout import Layout
from symgraph.core.errors import ConfigError, GraphError, RunError
from symgraph.frontend.init import AnyInitializer, Uniform
from symgraph.frontend.io import DataDesc
from symgraph.frontend.metric import EvalMetric
from symgraph.frontend.monitor import Monitor
from symgraph.frontend.optimizer import Optimizer


class Part(NamedTuple):
    """A module of the row."""

    module: BaseModule
    #: Whether it is given the batch's labels.
    take_labels: bool
    #: Whether the outputs before become its data in order, whatever they are called.
    auto_wiring: bool


class SequentialModule(BaseModule):
    """Modules in a row, trained together (MXNet SequentialModule).

    Each module waits for the one before. To spread one network over devices, make it one Module
    with `group2ctxs`, whose parts overlap.
    """

    META_TAKE_LABELS = "take_labels"
    META_AUTO_WIRING = "auto_wiring"

    def __init__(self, logger: Any = logging) -> None:
        """Make an empty row; logger: where `fit` logs."""
        super().__init__(logger)
        self._parts: list[Part] = []
        self._bound = self._ready = self.optimizer_initialized = False
        self._labels: list[DataDesc] = []

    def add(
        self, module: BaseModule, *, take_labels: bool = False, auto_wiring: bool = False
    ) -> Self:
        """Add a module at the end, which has to be bound; return the row.

        Args:
            module: The module.
            take_labels: Whether it is given the batch's labels.
            auto_wiring: Whether it takes the outputs before in order, whatever they are called.
        """
        if not isinstance(module, BaseModule):
            raise TypeError(f"a SequentialModule has modules, not {module!r}")
        self._parts.append(Part(module, take_labels, auto_wiring))
        self._bound = self._ready = self.optimizer_initialized = False
        return self

    # -- names and shapes ----------------------------------------------------------------------

    @property
    def _first(self) -> BaseModule:
        return self._require_parts()[0].module

    @property
    def _final(self) -> BaseModule:
        return self._require_parts()[-1].module

    def _require_parts(self) -> list[Part]:
        if not self._parts:
            raise RunError("the SequentialModule is empty: add modules")
        return self._parts

    @property
    def binded(self) -> bool:
        """Whether all modules are bound to shapes."""
        return self._bound

    @property
    def for_training(self) -> bool:
        """Whether it is bound for training."""
        return self._bound and self._first.for_training

    @property
    def params_initialized(self) -> bool:
        """Whether parameters have values."""
        return self._ready

    @property
    def data_names(self) -> list[str]:
        """The names of the first module's inputs."""
        return self._first.data_names

    @property
    def output_names(self) -> list[str]:
        """The names of the last module's outputs."""
        return self._final.output_names

    @property
    def label_shapes(self) -> list[DataDesc]:
        """The labels as they were bound; none if no module takes them."""
        return self._labels if any(part.take_labels for part in self._parts) else []

    @property
    def output_shapes(self) -> list[tuple[str, Any]]:
        """(name, shape) of each output of the last module."""
        return self._final.output_shapes

    def samples(self) -> tuple[int, list[Layout], dict[str, int | None]]:
        """See BaseModule."""
        size, layouts, _ = self._final.samples()
        takers = [part.module for part in self._parts if part.take_labels]
        return size, layouts, takers[-1].samples()[2] if takers else {}

    # -- binding and parameters ----------------------------------------------------------------

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
        """Bind all modules, each to the outputs of the one before.

        Raises ConfigError for a shared_module, which MXNet does not take either.
        """
        if self._bound and not force_rebind:
            return
        if shared_module is not None:
            raise ConfigError("a SequentialModule shares no parameters: leave shared_module out")
        self._labels = descriptions("label_shapes", label_shapes)
        data = descriptions("data_shapes", data_shapes)
        for index, (module, takes, wires) in enumerate(self._require_parts()):
            if wires:
                data = _renamed(data, module.data_names)
            module.bind(
                data,
                self._labels if takes else None,
                for_training,
                inputs_need_grad or (for_training and index > 0),
                force_rebind=True,
                grad_req=grad_req,
            )
            data = [DataDesc(name, shape) for name, shape in module.output_shapes]
        self._bound, self.inputs_need_grad = True, inputs_need_grad

    def init_params(
        self,
        initializer: AnyInitializer | None = Uniform(0.01),  # noqa: B008
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set first values in every module; GraphError for a name that two modules have."""
        if self._ready and not force_init:
            return
        owners: dict[str, int] = {}
        for index, part in enumerate(self._require_parts()):
            part.module.init_params(
                initializer, arg_params, aux_params, allow_missing, force_init, allow_extra=True
            )
            for name in (n for table in part.module.get_params() for n in table):
                if name in owners:
                    raise GraphError(f"modules {owners[name]} and {index} both have a {name!r}")
                owners[name] = index
        for name in (*(arg_params or ()), *(aux_params or ())):
            if name not in owners and not allow_extra:
                raise GraphError(f"no parameter {name!r} in any module")
        self._ready = True

    def get_params(self) -> tuple[Params, Params]:
        """Copy (parameters, auxiliary states) of all modules, by name."""
        tables = [part.module.get_params() for part in self._parts]
        args = {name: array for table, _ in tables for name, array in table.items()}
        return args, {name: array for _, table in tables for name, array in table.items()}

    def init_optimizer(
        self,
        kvstore: Store = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: Settings = RATE,
        force_init: bool = False,
    ) -> None:
        """Choose the optimizer of every module."""
        for part in self._require_parts():
            part.module.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        self.optimizer_initialized = True

    # -- steps ---------------------------------------------------------------------------------

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        """Compute a batch in one module after the other."""
        batch = as_batch(data_batch)
        for index, (module, takes, wires) in enumerate(self._require_parts()):
            labels = batch.label if takes else ()
            given = replace(batch, label=labels, provide_label=batch.provide_label if takes else ())
            if wires:
                given.provide_data = ()
            if index:
                before = self._parts[index - 1].module
                outputs = before.get_outputs()
                names = module.data_names if wires else before.output_names
                described = [(n, a.shape) for n, a in zip(names, outputs, strict=True)]
                given = replace(given, data=outputs, provide_data=described)
            module.forward(given, is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients in one module after the other, from the last to the first."""
        for index, part in reversed([*enumerate(self._parts)]):
            part.module.backward(out_grads)
            if index:
                out_grads = part.module.get_input_grads()

    def update(self) -> None:
        """Change the parameters of every module by their gradients."""
        for part in self._parts:
            part.module.update()

    def get_outputs(self, merge_multi_context: bool = True) -> list[Any]:
        """The outputs of the last module."""
        return self._final.get_outputs(merge_multi_context)

    def get_input_grads(self, merge_multi_context: bool = True) -> list[Any]:
        """The gradients of the first module's inputs."""
        return self._first.get_input_grads(merge_multi_context)

    def update_metric(self, eval_metric: EvalMetric, labels: Sequence[Any], pad: int = 0) -> None:
        """Show the labels to a metric, with the outputs of each module that takes them."""
        for part in self._parts:
            if part.take_labels:
                show_batch(part.module, eval_metric, labels, pad)

    def install_monitor(self, mon: Monitor) -> None:
        """Let a monitor see every pass of every module."""
        for part in self._parts:
            part.module.install_monitor(mon)

    def close(self) -> None:
        """End the threads of all modules."""
        for part in self._parts:
            part.module.close()


def _renamed(data: Sequence[DataDesc], names: Sequence[str]) -> list[DataDesc]:
    if len(data) != len(names):
        raise GraphError(f"auto_wiring: {[d.name for d in data]} for the inputs {list(names)}")
    pairs = zip(names, data, strict=True)
    return [DataDesc(name, d.shape, d.dtype, d.layout) for name, d in pairs]
