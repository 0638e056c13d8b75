"""The bucketing module: one network for each bucket, all on the same parameters and devices."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any

from runtime.frontends.mxnet.arguments import as_batch
from runtime.frontends.mxnet.module import Module
from runtime.frontends.mxnet.module_binding import ModuleBinding, ModuleSymbol
from runtime.frontends.mxnet.store_module import StoreModule
from symgraph.core.errors import ConfigError
from symgraph.frontend.io import DataBatch
from symgraph.frontend.model import SymGen, bucket_network
from symgraph.frontend.params_file import load_params


class BucketingModule(StoreModule):
    """A module whose batches say which bucket's network they are for (MXNet BucketingModule).

    The default bucket's network holds all parameters; another bucket's is planned when its first
    batch comes, finds its parameters by name, and changes the same arrays. Names that are given
    automatically begin anew in every bucket, so they agree. What the module tells of symbol, names,
    shapes and plan is the current bucket's.
    """

    shareable = False

    def __init__(
        self,
        sym_gen: SymGen,
        default_bucket_key: Hashable = None,
        logger: Any = logging,
        **settings: Any,
    ) -> None:
        """Make a module; `bind` gives it shapes.

        Args:
            sym_gen: Bucket key -> (symbol, data_names, label_names).
            default_bucket_key: The key of the largest bucket.
            logger: Where `fit` logs.
            settings: Further keywords of Module.
        """
        if default_bucket_key is None:
            raise ConfigError("default_bucket_key is missing; give the key of the largest bucket")
        self._sym_gen, self._default_key = sym_gen, default_bucket_key
        module = Module(*bucket_network(sym_gen, default_bucket_key), logger, **settings)
        super().__init__(module._names, module._options, module._seed, logger)

    def switch_bucket(
        self,
        bucket_key: Hashable,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
    ) -> None:
        """Make a bucket's network the current one; its shapes are read the first time."""
        default = self._default
        if bucket_key == self._default_key:
            self._turned = default
            return
        if bucket_key not in self._buckets:
            symbol, data, labels = bucket_network(self._sym_gen, bucket_key)
            fixed = self._names.fixed_names
            states = self._names.state_names
            names = ModuleSymbol.of(symbol, data, labels, fixed, self.logger, states)
            self._buckets[bucket_key] = ModuleBinding(
                names,
                data_shapes,
                label_shapes,
                default.mode,
                self._options,
                self._store,
                default,
            )
        self._turned = self._buckets[bucket_key]

    def prepare(self, data_batch: Any) -> None:
        """Plan the network of a batch's bucket; the current bucket stays."""
        before = self._current
        self._switch(as_batch(data_batch))
        self._turned = before

    def _switch(self, batch: DataBatch) -> None:
        key = self._default_key if batch.bucket_key is None else batch.bucket_key
        if key not in (self._default_key, *self._buckets) and not batch.provide_data:
            raise ConfigError(
                f"a batch of bucket {key!r} does not say what its arrays are: give provide_data "
                "and provide_label"
            )
        self.switch_bucket(key, batch.provide_data, batch.provide_label)

    def _turn_to(self, batch: DataBatch) -> dict[str, Any]:
        self._switch(batch)
        return super()._turn_to(batch)

    @staticmethod
    def load(
        prefix: str,
        epoch: int,
        sym_gen: SymGen,
        default_bucket_key: Hashable,
        load_optimizer_states: bool = False,
        **settings: Any,
    ) -> BucketingModule:
        """Make a module from a checkpoint, to be bound."""
        module = BucketingModule(sym_gen, default_bucket_key, **settings)
        states = f"{prefix}-{epoch:04d}.states" if load_optimizer_states else None
        module.start_from(load_params(f"{prefix}-{epoch:04d}.params"), states)
        return module
