"""The protocol that all contenders share: configurations, data and a loop over stdin.

A contender prepares, reports it in one JSON line, and answers each line `run K` on stdin with one
JSON line: the seconds of K steps. On a GPU, `trace K` also asks for what the card did;
this requires PyTorch. Peers run this file in other environments, so the rest requires only numpy,
of any version.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCAB, PAD = 10_000, 0
RATE, CLIP = 0.1, 5.0  # of the language models, by plain SGD
ADAM_RATE = 0.001  # of seq2seq, which is clipped too
VGG_RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-4
SIDE, CLASSES = 32, 10
BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # filters, convolutions
WARM_UP = 2  # steps before a contender says that it is ready
BATCHES = 8  # used by the steps in turn


class Config(NamedTuple):
    """A language model: layers, hidden units (also of the embedding), batch, time steps, and heads.

    A network with heads is a transformer, one without an LSTM.
    """

    layers: int
    hidden: int
    batch: int
    steps: int
    heads: int = 0
    unit = "tokens"

    @property
    def kind(self) -> str:
        return "transformer" if self.heads else "lstm"

    @property
    def count(self) -> int:
        """Count the tokens of a step."""
        return self.batch * self.steps

    @property
    def flops(self) -> int:
        """Count the operations of the matrix products of a forward pass.

        The embedding counts as a product in the backward pass only, where an LSTM's is one. A word
        of a transformer attends to itself and earlier ones only.
        """
        layer = 2 * (12 if self.heads else 8) * self.hidden**2
        if self.heads:
            layer += 2 * self.hidden * (self.steps + 1)
        return (self.layers * layer + 2 * self.hidden * VOCAB) * self.count


class Translation(NamedTuple):
    """Seq2seq with attention: units, batch, and buckets of (source, target) lengths.

    A step is one update for each bucket.
    """

    hidden: int
    batch: int
    buckets: tuple[tuple[int, int], ...]
    kind = "seq2seq"
    unit = "words"

    @property
    def count(self) -> int:
        """Count the target words of a step, without padding."""
        first = translations(self)[0]
        return sum(int((batch["label"] != PAD).sum()) for batch in first)

    @property
    def flops(self) -> int:
        """Count the operations of the matrix products of a forward pass, without padding."""
        total = 0
        for batch in translations(self)[0]:
            source = batch["source_length"]
            target = (batch["label"] != PAD).sum(1)
            read = 2 * 12 + 4  # two GRUs and the keys, in products of hidden x hidden
            written = 12 + 6
            total += self.hidden**2 * int(read * source.sum() + written * target.sum())
            total += 6 * self.hidden * int((source * target).sum())
            total += 2 * self.hidden * VOCAB * int(target.sum()) + 4 * self.hidden**2 * self.batch
        return total


class Images(NamedTuple):
    """VGG-16 with batch normalization on images of 32 x 32 pixels."""

    batch: int
    kind = "vgg"
    unit = "images"

    @property
    def count(self) -> int:
        """Count the images of a step."""
        return self.batch

    @property
    def flops(self) -> int:
        """Count the operations of a forward pass with plain convolutions."""
        total, channels, side = 0, 3, SIDE
        for filters, depth in BLOCKS:
            for _ in range(depth):
                total += 2 * 9 * channels * filters * side**2
                channels = filters
            side //= 2
        return (total + 2 * channels * (channels + CLASSES)) * self.batch


TRANSFORMERS = {
    "transformer": Config(4, 192, 32, 64, heads=4),
    "transformer-512": Config(6, 512, 32, 128, heads=8),
}
AnyConfig = Config | Translation | Images
CONFIGS: dict[str, AnyConfig] = {
    "small": Config(2, 200, 20, 20),
    "medium": Config(2, 650, 20, 35),
    "large": Config(2, 1500, 20, 35),
    "deep": Config(8, 512, 32, 32),
    "mxnet-example": Config(8, 400, 64, 60),
}
ON_GPUS = (
    "small",
    *(f"{n}@{b}" for n in ("large", "deep", "mxnet-example") for b in (64, 128, 256)),
    *TRANSFORMERS,
)
CONFIGS.update(TRANSFORMERS)
CONFIGS["seq2seq"] = Translation(512, 32, ((10, 10), (20, 20), (30, 30), (40, 40)))
CONFIGS["vgg"] = Images(64)
ON_CPUS = tuple(CONFIGS)
CONFIGS.update(
    {  # NAME@BATCH: another number of sequences
        name: CONFIGS[name.partition("@")[0]]._replace(batch=int(name.partition("@")[2]))
        for name in ON_GPUS
        if "@" in name
    }
)


def batches(config: Config) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return random word ids and labels, (T, B) int64, the same for every contender."""
    rng = np.random.default_rng(0)
    shape = config.steps, config.batch
    return [(rng.integers(0, VOCAB, shape), rng.integers(0, VOCAB, shape)) for _ in range(BATCHES)]


@cache
def translations(config: Translation) -> list[list[dict[str, np.ndarray]]]:
    """Return a batch of random sentences for each bucket, of each step; ids are int64 (B, T).

    Lengths are uniform among those that belong to the bucket.
    """
    rng = np.random.default_rng(0)

    def side(longest: int, shortest: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = rng.integers(shortest, longest + 1, config.batch)
        ids = rng.integers(1, VOCAB, (config.batch, longest))
        return np.where(np.arange(longest) < lengths[:, None], ids, PAD), lengths

    def batch(bucket: tuple[int, int], before: tuple[int, int]) -> dict[str, np.ndarray]:
        source, length = side(bucket[0], before[0] + 1)
        label, _ = side(bucket[1], before[1] + 1)
        target = np.roll(label, 1, axis=1)
        target[:, 0] = PAD
        return {"source": source, "source_length": length, "target": target, "label": label}

    pairs = [*zip(config.buckets, [(0, 0), *config.buckets], strict=False)]
    return [[batch(*pair) for pair in pairs] for _ in range(BATCHES)]


def images(config: Images) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return random images, float32 (B, 3, 32, 32), and classes, int64 (B,)."""
    rng = np.random.default_rng(0)
    shape = config.batch, 3, SIDE, SIDE
    return [
        (rng.standard_normal(shape).astype("float32"), rng.integers(0, CLASSES, config.batch))
        for _ in range(BATCHES)
    ]


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
