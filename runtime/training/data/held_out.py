"""Batches of evaluations and predictions, which all ranks must have read alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from runtime.training.data.base import Source, brief_digest
from runtime.transports import Cluster
from runtime.transports.agreement import agree_on_batches
from symgraph.core.errors import ConfigError, RunError
from symgraph.frontend.io import DataBatch


def held_out_steps(
    cluster: Cluster, source: Source, limit: int | None
) -> Iterator[tuple[int, Sequence[DataBatch]]]:
    """Yield how many samples, or tokens, count in each step, and its batches.

    Args:
        cluster: The ranks, which compare how many steps there are, and in the end what was read.
        source: The held-out part.
        limit: The largest number of samples, or tokens, for all steps but the first; None: all.

    Raises:
        RunError: Ranks have read different batches, or one cannot read what it could before.
    """
    left, read = math.inf if limit is None else limit, 0
    try:
        _compare(cluster, "the held-out part", len(source))
        for step in range(len(source)):
            count = source.count(step)
            left -= count
            if step and left < 0:
                break
            batches = source.batches(step)
            read = brief_digest(batches, read)
            yield count, batches
    except ConfigError as error:
        raise RunError(str(error)) from error
    _compare(cluster, "the held-out part", read)


def alike(cluster: Cluster, batches: Iterator[DataBatch]) -> Iterator[DataBatch]:
    """Yield batches; RunError on all ranks if one of them reads another one, or fewer."""
    number = 0
    for number, batch in enumerate(batches, 1):
        _compare(cluster, f"batch {number}", brief_digest([batch]))
        yield batch
    _compare(cluster, f"batch {number + 1}", -1)


def _compare(cluster: Cluster, what: str, read: int) -> None:
    """Raise RunError on all ranks unless this number for what they have read is the same."""
    if len(cluster.ranks) < cluster.size:
        cluster.run(lambda transport: agree_on_batches(transport, what, read))
