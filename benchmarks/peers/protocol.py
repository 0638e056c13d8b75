"""The protocol that all contenders share: configurations, data and a loop over stdin.

A contender prepares, reports it in one JSON line, and answers each line `run K` on stdin with one
JSON line: the seconds of K training steps. On a GPU, `trace K` also asks for what the card did;
this requires PyTorch. Peers run this file in other environments, so the rest requires only numpy,
of any version.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCAB = 10_000
RATE, CLIP = 0.1, 5.0
WARM_UP = 2  # steps before a contender says that it is ready
BATCHES = 8  # used by the steps in turn


class Config(NamedTuple):
    """Layers, hidden units (also the size of the embedding), batch, time steps, and heads.

    A network with heads is a transformer, one without an LSTM.
    """

    layers: int
    hidden: int
    batch: int
    steps: int
    heads: int = 0

    @property
    def tokens(self) -> int:
        return self.batch * self.steps

    @property
    def flops(self) -> int:
        """Count the operations of a step's matrix products, forward and backward.

        The gradient of the embedded words counts, as a part of an LSTM's embedding's. A word of a
        transformer attends to itself and earlier ones only, and scores are computed once.
        """
        layer = 2 * (12 if self.heads else 8) * self.hidden**2
        if self.heads:
            layer += 2 * self.hidden * (self.steps + 1)
        return 3 * (self.layers * layer + 2 * self.hidden * VOCAB) * self.tokens


TRANSFORMERS = {
    "transformer": Config(4, 192, 32, 64, heads=4),
    "transformer-512": Config(6, 512, 32, 128, heads=8),
}
CONFIGS = {
    "small": Config(2, 200, 20, 20),
    "medium": Config(2, 650, 20, 35),
    "large": Config(2, 1500, 20, 35),
    "deep": Config(8, 512, 32, 32),
    "mxnet-example": Config(8, 400, 64, 60),
}
ON_CPUS = tuple(CONFIGS)
ON_GPUS = (
    "small",
    *(f"{n}@{b}" for n in ("large", "deep", "mxnet-example") for b in (64, 128, 256)),
    *TRANSFORMERS,
)
CONFIGS.update(TRANSFORMERS)
CONFIGS.update(
    {  # NAME@BATCH: another number of sequences
        name: CONFIGS[name.partition("@")[0]]._replace(batch=int(name.partition("@")[2]))
        for name in ON_GPUS
        if "@" in name
    }
)


def batches(config: Config) -> list[tuple[np.ndarray, np.ndarray]]:
    """Yield random word ids and labels, (T, B) int64, the same for every contender."""
    rng = np.random.default_rng(0)
    shape = config.steps, config.batch
    return [(rng.integers(0, VOCAB, shape), rng.integers(0, VOCAB, shape)) for _ in range(BATCHES)]


def serve(
    step: Callable[[int], float],
    versions: str,
    *,
    choice: str = "",
    before: Callable[[], object] = lambda: None,
    memory: Callable[[], int] | None = None,
) -> None:
    """Warm up, then obey stdin until it ends.

    Args:
        step: trains on batch i, waits for the end and returns the loss.
        versions: the software's versions, for the record.
        choice: choices for this configuration, for the record.
        before: called before the time of a step begins.
        memory: returns the peak in bytes, if it is not that of this process alone.
    """
    for number in range(WARM_UP):
        before()
        step(number % BATCHES)
    reset_peak()
    answer({"versions": versions, "choice": choice, "blas": blas_kernels()})
    number = WARM_UP
    for word, count in commands():
        seconds, work = [], list[Work]()
        with tracing(work) if word == "trace" else nullcontext():
            for _ in range(count):
                before()
                start = time.perf_counter()
                loss = step(number % BATCHES)
                seconds.append(time.perf_counter() - start)
                number += 1
        peak = peak_bytes() if memory is None else memory()
        answer({"seconds": seconds, "loss": float(loss), "peak_bytes": peak, "work": work})


#: A kernel or copy on a GPU: its name, stream, and when it began and ended, in microseconds.
Work = tuple[str, int, float, float]


@contextmanager
def tracing(work: list[Work]) -> Iterator[None]:
    """Note what GPUs do for this process, by CUPTI, which PyTorch's profiler asks for it."""
    import torch

    device = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[device]) as profile:
        yield
    work += [
        (event.name, event.device_resource_id, event.time_range.start, event.time_range.end)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


def commands() -> Iterator[tuple[str, int]]:
    """Yield (word, count) of each line of stdin."""
    for line in sys.stdin:
        word, count = line.split()
        yield word, int(count)


def answer(facts: dict[str, object]) -> None:
    """Write one JSON line to stdout, even after an unfinished line."""
    sys.stdout.write("\n" + json.dumps(facts) + "\n")
    sys.stdout.flush()


def blas_kernels() -> list[str]:
    """Describe the loaded BLAS libraries, kernels and threads; requires threadpoolctl."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return []
    return sorted(
        f"{b['internal_api']} {b['version']} {b.get('architecture', '')} x{b['num_threads']}"
        for b in threadpool_info()
        if b["user_api"] == "blas"
    )


def peak_bytes() -> int:
    """Return the largest resident memory of this process since `reset_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no VmHWM: this benchmark needs Linux")


def reset_peak() -> None:
    """Reset the peak, so compiling and planning do not count."""
    Path("/proc/self/clear_refs").write_text("5")
