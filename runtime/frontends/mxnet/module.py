"""The module: a network with its parameters and optimizer, bound to shapes (MXNet's Module)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from partitioner.placement.group2ctx import Groups
from runtime.frontends.mxnet.module_binding import ModuleSymbol
from runtime.frontends.mxnet.placement import placed_options
from runtime.frontends.mxnet.store_module import StoreModule
from runtime.planning.options import Options
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError
from symgraph.frontend.params_file import load_checkpoint
from symgraph.frontend.symbol import Symbol
from symgraph.passes.loss_scale import AUTO, LossScale
from symgraph.passes.precision import FLOAT32


class Module(StoreModule):
    """A network that is trained and used batch by batch (MXNet Module).

    `forward`, `backward` and `update` are the three parts of a step; `fit` runs steps whole, so
    that parts overlap. Results do not depend on the devices.

    Args:
        symbol: The network.
        data_names: The arguments that are data.
        label_names: The arguments that are labels.
        logger: Where `fit` logs.
        context: A device, or several, over which group2ctxs or the strategy places groups.
        work_load_list: Accepted without effect: the planner shares work out.
        fixed_param_names: Parameters that are not trained.
        state_names: Arguments that are inputs but not in batches; see `set_states`.
        group2ctxs: ctx_group -> device, or a list of such dicts: one for each copy of the
            network.
        compression_params: None: gradients are never compressed.
        micro_batches: In how many parts a batch goes through the pipeline, or "auto": the
            shortest predicted step.
        schedule: The order of micro-batches; a name of the schedules.
        time_segment: How a recurrent network is cut along time; see runtime.Options.
        strategy: How groups are placed on devices where group2ctxs does not say.
        seed: The key of first values and dropout; None: that of `mx.random.seed`.
        precision: float16 or bfloat16 keeps activations in 16 bits and parameters in float32;
            see symgraph.passes.precision.
        loss_scale: The factor of losses' gradients until the update, or `auto`; see
            symgraph.passes.loss_scale.
    """

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Context | Sequence[Context] | None = None,
        work_load_list: Sequence[float] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        state_names: Sequence[str] | None = None,
        group2ctxs: Groups | Sequence[Groups] | None = None,
        compression_params: Mapping[str, Any] | None = None,
        *,
        micro_batches: int | str = 1,
        schedule: str = "gpipe",
        time_segment: int | str | None = None,
        strategy: str = "auto",
        seed: int | None = None,
        precision: str = FLOAT32,
        loss_scale: float | str = AUTO,
    ) -> None:
        """Make a module; `bind` gives it shapes."""
        if compression_params:
            raise ConfigError("compression_params: gradients are not compressed here; leave it out")
        names = ModuleSymbol.of(
            symbol, data_names, label_names, fixed_param_names, logger, state_names
        )
        options = Options(
            schedule=schedule,
            micro_batches=micro_batches,
            time_segment=time_segment,
            precision=precision,
            loss_scale=LossScale.of(precision, loss_scale),
        )
        options = placed_options(options, context, group2ctxs, strategy)
        super().__init__(names, options, seed, logger)

    @staticmethod
    def load(prefix: str, epoch: int, load_optimizer_states: bool = False, **kwargs: Any) -> Module:
        """Make a module from a checkpoint, to be bound; keywords as for Module."""
        symbol, *params = load_checkpoint(prefix, epoch)
        module = Module(symbol, **kwargs)
        states = f"{prefix}-{epoch:04d}.states" if load_optimizer_states else None
        module.start_from((params[0], params[1]), states)
        return module
