"""What plans and sessions require of what they are given, each mistake told in the caller's words.

Configs are checked by their keys (symgraph.app.config); this is for programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from partitioner.strategies import find_strategy
from runtime.planning.schedule_choice import AUTO, FORWARD_ONLY, SUFFIXES
from runtime.schedule.generators.table import find_schedule
from symgraph.core.context import require_context, require_contexts
from symgraph.core.errors import MicroBatchError, RunError
from symgraph.core.types import TensorType
from symgraph.frontend.optimizer import Optimizer
from symgraph.passes.batching import Feed

if TYPE_CHECKING:
    from runtime.planning.plan import Options


def require_asked(feeds: Mapping[str, Any], options: Options) -> None:
    """Refuse what no plan can be made of, also where nothing would ask for it.

    TypeError for feeds, devices and counts that are none; MicroBatchError for a batch axis that is
    not there; ConfigError and PlacementError for unknown schedules and strategies.
    """
    _require_feeds(feeds)
    require_context("default", options.default)
    require_contexts("devices", options.devices)
    for group, given in (options.groups or {}).items():
        require_contexts(f"group2ctx: what {group!r} is mapped to", given)
    require_known(options.schedule, options.strategy)
    _require_counts(options.micro_batches, options.time_segment)


def _require_feeds(feeds: Mapping[str, Any]) -> None:
    for name, feed in feeds.items():
        if not isinstance(feed, Feed) or not isinstance(feed.type, TensorType):
            raise TypeError(
                f"feeds: {name!r} is a Feed(TensorType(shape, dtype), batch axis), not {feed!r}"
            )
        rank = len(feed.type.shape)
        if feed.axis not in range(rank):
            raise MicroBatchError(
                f"{name!r} of {feed.type} has no batch axis {feed.axis!r}; "
                + (f"use 0 to {rank - 1}" if rank else "what is fed needs one")
            )


def require_known(schedule: str, strategy: str | None) -> None:
    """ConfigError and PlacementError for unknown ones."""
    if schedule not in (AUTO, FORWARD_ONLY) and not schedule.endswith(SUFFIXES):
        find_schedule(schedule, AUTO, FORWARD_ONLY)
    if strategy not in (AUTO, None):
        find_strategy(strategy, AUTO)


def _require_counts(micro_batches: object, time_segment: object) -> None:
    """TypeError for what is no whole number; time_segment may be `auto` or None as well."""
    if not isinstance(micro_batches, int):
        raise TypeError(f"micro_batches is a whole number, not {micro_batches!r}")
    if not isinstance(time_segment, int | None) and time_segment != AUTO:
        raise TypeError(f"time_segment is a whole number, 'auto' or None, not {time_segment!r}")


def require_optimizer(optimizer: object, *, trains: bool, gradients: bool) -> None:
    """TypeError for what is none; RunError for a plan that it could not train."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be one of symgraph.optimizer, not {optimizer!r}")
    if not trains:
        raise RunError("an optimizer is given, but the plan has no updates: Options(update=True)")
    if not gradients:
        raise RunError(
            "an optimizer is given, but the plan has no gradients: plan(..., wrt=None) has those "
            "of all arguments that are not fed"
        )


def require_ranks(wanted: int, there: int) -> None:
    """RunError unless a cluster has a rank for each of a plan's."""
    if wanted != there:
        raise RunError(f"the plan has {wanted} ranks, but the cluster has {there}")
