"""The module: a network with its parameters and optimizer, bound to shapes (MXNet's Module)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from partitioner.placement.group2ctx import Groups
from runtime.frontends.mxnet.base_module import BaseModule
from runtime.frontends.mxnet.module_binding import ModuleSymbol
from runtime.frontends.mxnet.placement import placed_options
from runtime.planning.options import Options
from symgraph.core.context import Context
from symgraph.frontend.params_file import load_checkpoint
from symgraph.frontend.symbol import Symbol
from symgraph.passes.loss_scale import AUTO, LossScale
from symgraph.passes.precision import FLOAT32


class Module(BaseModule):
    """A network that is trained and used batch by batch (MXNet Module).

    `forward`, `backward` and `update` are the three parts of a step; `fit` runs steps whole, so
    that parts overlap. Results do not depend on the devices.
    """

    def __init__(
        self,
        symbol: Symbol,
        data_names: Sequence[str] | None = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        logger: Any = logging,
        context: Context | Sequence[Context] | None = None,
        fixed_param_names: Sequence[str] | None = None,
        group2ctxs: Groups | Sequence[Groups] | None = None,
        *,
        micro_batches: int = 1,
        schedule: str = "gpipe",
        time_segment: int | str | None = None,
        strategy: str = "auto",
        seed: int = 0,
        precision: str = FLOAT32,
        loss_scale: float | str = AUTO,
    ) -> None:
        """Make a module; `bind` gives it shapes.

        Args:
            symbol: The network.
            data_names: The arguments that are data.
            label_names: The arguments that are labels.
            logger: Where `fit` logs.
            context: A device, or several, over which group2ctxs or the strategy places groups.
            fixed_param_names: Parameters that are not trained.
            group2ctxs: ctx_group -> device, or a list of such dicts: one for each copy of the
                network.
            micro_batches: In how many parts a batch goes through the pipeline.
            schedule: The order of micro-batches; a name of the schedules.
            time_segment: How a recurrent network is cut along time; see runtime.Options.
            strategy: How groups are placed on devices where group2ctxs does not say.
            seed: The key of first values and dropout.
            precision: float16 or bfloat16 keeps activations in 16 bits and parameters in float32;
                see symgraph.passes.precision.
            loss_scale: The factor of losses' gradients until the update, or `auto`; see
                symgraph.passes.loss_scale.
        """
        names = ModuleSymbol.of(symbol, data_names, label_names, fixed_param_names, logger)
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
