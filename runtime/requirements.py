"""What plans and sessions require of what they are given, each mistake told in the caller's words.

Configs are checked by their keys (symgraph.config_keys); this is for programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from partitioner.strategies import STRATEGIES
from runtime.choose import AUTO, FORWARD_ONLY, SUFFIXES
from runtime.schedules import SCHEDULES
from symgraph.batching import Feed
from symgraph.context import require_context
from symgraph.errors import ConfigError, MicroBatchError, PlacementError, RunError, nearest
from symgraph.optimizer import Optimizer
from symgraph.types import TensorType


def require_groups(groups: Mapping[str, Any] | None) -> None:
    """TypeError unless every group is mapped to a device or several."""
    for group, given in (groups or {}).items():
        several = not isinstance(given, str) and isinstance(given, Sequence)
        for device in given if several else [given]:
            require_context(f"group2ctx: what {group!r} is mapped to", device)


def require_feeds(feeds: Mapping[str, Any]) -> None:
    """TypeError for what is no Feed, MicroBatchError for a batch axis that is not there."""
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


def require_names(schedule: str, strategy: str | None) -> None:
    """ConfigError and PlacementError for unknown ones, also where nothing asks for them."""
    schedules = (AUTO, FORWARD_ONLY, *SCHEDULES)
    if schedule not in schedules and not schedule.endswith(SUFFIXES):
        raise ConfigError(f"no schedule {schedule!r}; {nearest(schedule, schedules)}")
    strategies = (AUTO, *STRATEGIES)
    if strategy is not None and strategy not in strategies:
        raise PlacementError(f"no strategy {strategy!r}; {nearest(strategy, strategies)}")


def require_counts(micro_batches: object, time_segment: object) -> None:
    """TypeError for what is no whole number; time_segment may be `auto` or None as well."""
    if not isinstance(micro_batches, int):
        raise TypeError(f"micro_batches is a whole number, not {micro_batches!r}")
    if not isinstance(time_segment, int | None) and time_segment != AUTO:
        raise TypeError(f"time_segment is a whole number, 'auto' or None, not {time_segment!r}")


def require_optimizer(optimizer: object, *, trains: bool, gradients: bool) -> None:
    """TypeError for what is none; RunError for a plan that it could not train."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer is one of symgraph.optimizer, not {optimizer!r}")
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
