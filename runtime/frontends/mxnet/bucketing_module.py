"""The bucketing module: one network for each bucket, all on the same parameters and devices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from runtime.frontends.mxnet.base_module import RATE, BaseModule, Params, Settings
from runtime.frontends.mxnet.module import Module
from runtime.planning.plan import Plan
from symgraph.core.batch_layout import Layout
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.types import Array, Shape
from symgraph.frontend.init import Initializer, Mixed, Uniform
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.frontend.name import NameManager
from symgraph.frontend.optimizer import Optimizer
from symgraph.frontend.params_file import load_params
from symgraph.frontend.symbol import Symbol

# key -> (symbol, data_names, label_names)
SymGen = Callable[[Any], tuple[Symbol, Sequence[str], Sequence[str] | None]]


class BucketingModule(BaseModule):
    """A module whose batches say which bucket's network they are for (MXNet BucketingModule).

    sym_gen: bucket key -> (symbol, data_names, label_names). The default bucket's network holds
    all parameters; another bucket's is planned when its first batch comes, finds its parameters by
    name, and changes the same arrays. Further keywords as for Module. Names that are given
    automatically begin anew in every bucket, so they agree.
    """

    def __init__(
        self,
        sym_gen: SymGen,
        default_bucket_key: Hashable = None,
        logger: Any = logging,
        **settings: Any,
    ) -> None:
        super().__init__(logger)
        if default_bucket_key is None:
            raise ConfigError("default_bucket_key is missing; give the key of the largest bucket")
        self._sym_gen = sym_gen
        self._settings = settings
        self._default_key = default_bucket_key
        self._how: dict[str, Any] = {}  # what `bind` was called with
        self._buckets = {default_bucket_key: self._generate(default_bucket_key)}
        self._now = self._default

    def _generate(self, key: Hashable) -> Module:
        with NameManager():
            made = self._sym_gen(key)
        if not isinstance(made, tuple | list) or len(made) != 3:
            raise TypeError(
                f"sym_gen({key!r}) gives {made!r}, but must give (symbol, data_names, label_names)"
            )
        symbol, data_names, label_names = made
        return Module(symbol, data_names, label_names, self.logger, **self._settings)

    @property
    def _default(self) -> Module:
        return self._buckets[self._default_key]

    # -- names, of the current bucket ----------------------------------------------------------

    @property
    def symbol(self) -> Symbol:
        return self._now.symbol

    @property
    def data_names(self) -> list[str]:
        """The names of the inputs."""
        return self._now.data_names

    @property
    def label_names(self) -> list[str]:
        return self._now.label_names

    @property
    def output_names(self) -> list[str]:
        return self._now.output_names

    @property
    def data_shapes(self) -> list[DataDesc]:
        """The inputs as they were bound."""
        return self._now.data_shapes

    @property
    def label_shapes(self) -> list[DataDesc]:
        """The labels as they were bound."""
        return self._now.label_shapes

    @property
    def output_shapes(self) -> list[tuple[str, Shape]]:
        """(name, shape) of each output of the current bucket's network."""
        return self._now.output_shapes

    @property
    def for_training(self) -> bool:
        return self._default.for_training

    @property
    def inputs_need_grad(self) -> bool:
        return self._default.inputs_need_grad

    @property
    def binded(self) -> bool:
        return self._default.binded

    @property
    def params_initialized(self) -> bool:
        return self._default.params_initialized

    @property
    def optimizer_initialized(self) -> bool:
        return self._default.optimizer_initialized

    @property
    def loss_scale(self) -> float:
        """See Module.loss_scale; of all buckets."""
        return self._default.loss_scale

    @property
    def plan(self) -> Plan:
        """The plan of the current bucket's network."""
        return self._now.plan

    # -- binding -------------------------------------------------------------------------------

    def bind(
        self,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: Any = None,
        grad_req: str | Mapping[str, str] = "write",
    ) -> None:
        """Plan the default bucket's network for these shapes, and the others' later."""
        if self.binded and not force_rebind:
            return
        self._how = {
            "for_training": for_training,
            "inputs_need_grad": inputs_need_grad,
            "grad_req": grad_req,
        }
        default = self._default
        default.bind(
            data_shapes,
            label_shapes,
            force_rebind=force_rebind,
            shared_module=shared_module,
            **self._how,
        )
        self._buckets = {self._default_key: default}
        self._now = default

    def switch_bucket(
        self,
        bucket_key: Hashable,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
    ) -> None:
        """Let a bucket's network be the current one; shapes: read the first time."""
        if not self.binded:
            raise RunError("the module is not bound to shapes: call bind")
        if bucket_key not in self._buckets:
            made = self._generate(bucket_key)
            made.bind(data_shapes, label_shapes, shared_module=self._default, **self._how)
            self._buckets[bucket_key] = made
        self._now = self._buckets[bucket_key]

    def prepare(self, data_batch: DataBatch) -> None:
        """Have the network of a batch's bucket planned; the current bucket stays."""
        before = self._now
        self._switch(data_batch)
        self._now = before

    def _switch(self, batch: DataBatch) -> None:
        key = self._default_key if batch.bucket_key is None else batch.bucket_key
        if key not in self._buckets and not batch.provide_data:
            raise ConfigError(
                f"a batch of bucket {key!r} does not say what its arrays are: give provide_data "
                "and provide_label"
            )
        self.switch_bucket(key, batch.provide_data, batch.provide_label)

    # -- parameters, which are the default bucket's --------------------------------------------

    def init_params(
        self,
        initializer: Initializer | Mixed | None = Uniform(0.01),  # noqa: B008
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        self._default.init_params(
            initializer, arg_params, aux_params, allow_missing, force_init, allow_extra
        )

    def init_optimizer(
        self,
        kvstore: str | None = "local",
        optimizer: str | Optimizer = "sgd",
        optimizer_params: Settings = RATE,
        force_init: bool = False,
    ) -> None:
        self._default.init_optimizer(kvstore, optimizer, optimizer_params, force_init)

    def get_params(self) -> tuple[Params, Params]:
        return self._default.get_params()

    @property
    def grad_dict(self) -> Params:
        """See Module.grad_dict; of all buckets."""
        return self._default.grad_dict

    def save_checkpoint(self, prefix: str, epoch: int, save_optimizer_states: bool = False) -> None:
        """Write a checkpoint; its symbol is the default bucket's. See Module.save_checkpoint."""
        self._default.save_checkpoint(prefix, epoch, save_optimizer_states)

    @staticmethod
    def load(
        prefix: str,
        epoch: int,
        sym_gen: SymGen,
        default_bucket_key: Hashable,
        load_optimizer_states: bool = False,
        **settings: Any,
    ) -> BucketingModule:
        """A module with a checkpoint's parameters, to be bound."""
        module = BucketingModule(sym_gen, default_bucket_key, **settings)
        states = f"{prefix}-{epoch:04d}.states" if load_optimizer_states else None
        module._default.start_from(load_params(f"{prefix}-{epoch:04d}.params"), states)
        return module

    # -- steps, of a batch's bucket ------------------------------------------------------------

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        self._switch(data_batch)
        self._now.forward(data_batch, is_train)

    def train_batch(self, data_batch: DataBatch) -> None:
        self._switch(data_batch)
        self._now.train_batch(data_batch)

    def backward(self, out_grads: Any = None) -> None:
        self._now.backward(out_grads)

    def update(self) -> None:
        self._now.update()

    def get_outputs(self) -> list[Array]:
        return self._now.get_outputs()

    def get_input_grads(self) -> list[Array]:
        """See Module.get_input_grads."""
        return self._now.get_input_grads()

    def samples(self) -> tuple[int, list[Layout], dict[str, int | None]]:
        return self._now.samples()

    def close(self) -> None:
        self._default.close()
