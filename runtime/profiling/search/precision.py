"""The precision of a search: `train.precision: auto` tries bfloat16 beside float32.

Each precision is searched for itself, since its kernels have other prices, and the best of both are
measured in alternation. If the fastest computes in bfloat16, some steps of it and of the best in
float32 train from the same weights on the same batches, and bfloat16 is taken if its losses are no
worse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from runtime.backends.cpu.choice import use_blas
from runtime.backends.device.processor import limit_blas
from runtime.planning.options import AUTO
from runtime.profiling.report.result import Passage
from runtime.profiling.search.candidate import Candidate
from runtime.profiling.trials.trial import Shared, endless
from runtime.training.job import job_of
from runtime.training.loss import mean_loss
from runtime.training.trainer import Trainer, blas_threads
from runtime.transports import Cluster
from symgraph.app.config import Config
from symgraph.core.errors import ConfigError
from symgraph.core.types import Array
from symgraph.core.units import count_text
from symgraph.passes.precision import FLOAT32

FEWEST, MOST = 10, 100  # steps of a loss curve
SECONDS = 20.0  # for the steps of each curve, if that is enough for the fewest
ROWS = 10  # of the table
WORSE = 0.01  # of float32's loss: by how much another one may be above it


def precisions_of(config: Config) -> list[Config]:
    """Return a config for each precision to search in."""
    if config.train.precision != AUTO:
        return [config]
    trains = [config.train.model_copy(update={"precision": p}) for p in (FLOAT32, "bfloat16")]
    return [config.model_copy(update={"train": train}) for train in trains]


@dataclass(frozen=True)
class LossCurves:
    """The losses of the same steps in float32 and in another precision."""

    precision: str
    """The other precision."""
    full: Sequence[float]
    """The loss of each step in float32."""
    low: Sequence[float]
    """The loss of each step in the other precision."""

    @classmethod
    def of(
        cls,
        full: Candidate,
        low: Candidate,
        clusters: Callable[[Config], Cluster],
        shared: Shared,
    ) -> LossCurves:
        """Train the same steps with a candidate in float32 and with another one."""
        if not low.planned.losses:
            raise ConfigError(
                "train.precision: auto judges precisions by their losses, and this network has "
                "none; name a precision, such as train.precision=bfloat16"
            )
        steps = max(FEWEST, min(MOST, int(SECONDS / max(full.seconds, low.seconds))))
        curves = [_losses(c, clusters(c.config), shared, steps) for c in (full, low)]
        return cls(low.precision, *curves)

    @property
    def last(self) -> int:
        """The number of steps that are judged: the last fifth."""
        return -(-len(self.full) // 5)

    @property
    def above(self) -> float:
        """The loss of the last steps minus float32's, divided by float32's."""
        return _above(self.full[-self.last :], self.low[-self.last :])

    @property
    def accepted(self) -> bool:
        """Whether the other precision's losses are finite and no worse."""
        return bool(np.isfinite(self.low).all()) and self.above <= WORSE

    def passage(self) -> Passage:
        """Return the curves as a table, with the verdict."""
        count = len(self.full)
        rows = [("steps", FLOAT32, self.precision, "difference")]
        for some in np.array_split(np.arange(count), min(ROWS, count)):
            full, low = (np.take(curve, some) for curve in (self.full, self.low))
            span = f"{some[0] + 1} to {some[-1] + 1}"
            means = f"{full.mean():.4f}", f"{low.mean():.4f}"
            rows.append((span, *means, f"{_above(full, low):+.2%}"))
        verdict = "taken" if self.accepted else f"not taken, as {WORSE:.0%} is allowed"
        return Passage(
            [f"the mean loss of {count_text(count, 'step')} on the same batches, by precision:"],
            rows,
            [f"the last {self.last} differ by {self.above:+.2%}: {self.precision} is {verdict}"],
        )

    def figures(self) -> dict[str, Any]:
        """Return the keys of `--json`."""
        return {
            "precision": self.precision,
            "float32_losses": list(self.full),
            "losses": list(self.low),
            "above": self.above,
            "accepted": self.accepted,
        }


def _above(full: Sequence[float] | Array, low: Sequence[float] | Array) -> float:
    """Return the mean of some losses minus that of float32's, divided by float32's."""
    base = float(np.mean(full))
    return (float(np.mean(low)) - base) / (abs(base) or 1.0)


def _losses(candidate: Candidate, cluster: Cluster, shared: Shared, steps: int) -> list[float]:
    """Return the losses of a candidate's first steps."""
    config = endless(candidate.config)
    train = config.train.model_copy(update={"on_nan": "ignore"})
    config = config.model_copy(update={"train": train})
    job = job_of(replace(candidate.planned, config=config))
    losses = []
    with use_blas(config.blas), limit_blas(blas_threads(config, cluster)):
        trainer = Trainer(job, cluster, shared.data(config))
        for number, batches in islice(trainer.steps(0), steps):
            figures = trainer.training.step_batches(batches)
            count = trainer.source.count(number)
            losses.append(mean_loss(figures, job.losses, count, train.on_nan))
    return losses
