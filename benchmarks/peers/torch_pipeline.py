"""PyTorch's torch.distributed.pipelining: two processes of one thread each, over gloo.

    PYTHON -m benchmarks.peers.torch_pipeline CONFIG

It starts its second process. It tries splits of the layers, then numbers of micro-batches, then
gpipe against 1f1b, and serves with the fastest. The decoder is in the second stage.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn import functional as F

from benchmarks.peers.protocol import (
    BATCHES,
    CLIP,
    CONFIGS,
    RATE,
    VOCAB,
    WARM_UP,
    Config,
    batches,
    peak_bytes,
    reset_peak,
    serve,
)

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
MICRO_BATCHES = (2, 4, 5, 8, 10, 16)
TRIES = 5  # steps per way to run, after one to warm up
NEAREST = 3  # splits to try, those with the most equal work
QUIT, STEP, PEAK = range(3)  # commands of rank 0 to rank 1


class Way(NamedTuple):
    """A way to run the pipeline; split is the number of layers in the first stage."""

    split: int
    micro_batches: int
    schedule: str

    def __str__(self) -> str:
        return f"{self.schedule}, M={self.micro_batches}, split after layer {self.split}"


class Contiguous(torch.autograd.Function):
    """The identity with a contiguous gradient, as gloo requires; nn.LSTM's is not contiguous."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.contiguous()


class First(nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.embed(data))[0].contiguous()


class Second(nn.Module):
    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True) if layers else None
        self.decode = nn.Linear(hidden, VOCAB)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Contiguous.apply(x)
        return self.decode(self.lstm(x)[0] if self.lstm is not None else x)


def cross_entropy(scores: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.reshape(-1, VOCAB), label.reshape(-1))


def make_step(rank: int, config: Config, way: Way) -> Callable[[int], float]:
    """Return this rank's part of a training step; it ends when both ranks do, with the loss."""
    hidden, layers = config.hidden, config.layers
    torch.manual_seed(0)
    module = Second(hidden, layers - way.split) if rank else First(hidden, way.split)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = SCHEDULES[way.schedule](stage, way.micro_batches, loss_fn=cross_entropy)
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=RATE, fused=True)
    data = [tuple(torch.from_numpy(a.T.copy()) for a in pair) for pair in batches(config)]

    def step(number: int) -> float:
        x, label = data[number]
        optimizer.zero_grad(set_to_none=True)
        losses: list[torch.Tensor] = []
        if rank:
            schedule.step(target=label, losses=losses)
        else:
            schedule.step(x)
        norm = nn.utils.get_total_norm([p.grad for p in parameters])
        sums = torch.tensor([float(norm) ** 2, sum(v.item() for v in losses) / way.micro_batches])
        dist.all_reduce(sums)
        scale = CLIP / (float(sums[0]) ** 0.5 + 1e-6)
        if scale < 1:
            for parameter in parameters:
                parameter.grad.mul_(scale)
        optimizer.step()
        dist.barrier()
        return float(sums[1])

    return step


def seconds_of(rank: int, config: Config, way: Way) -> float:
    """Measure the median of a few steps on rank 0; both ranks return it."""
    step = make_step(rank, config, way)
    spent = []
    for number in range(1 + TRIES):
        dist.barrier()
        start = time.perf_counter()
        step(number)
        spent.append(time.perf_counter() - start)
    found = torch.tensor([median(spent[1:])], dtype=torch.float64)
    dist.broadcast(found, 0)
    return float(found)


def best_way(rank: int, config: Config) -> Way:
    """Find the fastest way: by split, then micro-batches, then schedule."""

    def fastest(ways: Iterable[Way]) -> Way:
        for way in ways:
            if way not in tried:
                tried[way] = seconds_of(rank, config, way)
        return min(tried, key=tried.__getitem__)

    def imbalance(split: int) -> float:
        return abs((2 * split - layers) * 16 * config.hidden**2 - 2 * config.hidden * VOCAB)

    tried: dict[Way, float] = {}
    layers = config.layers
    splits = sorted(range(1, layers + 1), key=imbalance)[:NEAREST]
    way = fastest(Way(split, 4, "gpipe") for split in splits)
    counts = [m for m in MICRO_BATCHES if config.batch % m == 0]
    way = fastest(way._replace(micro_batches=m) for m in counts)
    return fastest(way._replace(schedule=s) for s in SCHEDULES)


def lead(config: Config) -> None:
    """Run rank 0: serve, and tell the other rank what to do."""

    def tell(code: int) -> None:
        dist.broadcast(torch.tensor([code]), 0)

    def memory() -> int:
        tell(PEAK)
        peaks = torch.tensor([peak_bytes()])
        dist.all_reduce(peaks)
        return int(peaks)

    way = best_way(0, config)
    step = make_step(0, config, way)
    serve(
        step,
        f"torch {torch.__version__}",
        choice=str(way),
        before=lambda: tell(STEP),
        memory=memory,
    )
    tell(QUIT)


def follow(config: Config) -> None:
    """Run rank 1: do what rank 0 says."""
    step = make_step(1, config, best_way(1, config))
    number = 0
    code = torch.tensor([STEP])
    while True:
        dist.broadcast(code, 0)
        if code == QUIT:
            return
        if code == STEP:
            step(number % BATCHES)
            number += 1
            if number == WARM_UP:
                reset_peak()
        else:
            dist.all_reduce(torch.tensor([peak_bytes()]))


def join(rank: int, store: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)


def main() -> None:
    config = CONFIGS[sys.argv[1]]
    if len(sys.argv) > 2:
        join(1, sys.argv[2])
        follow(config)
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = str(Path(folder) / "store")
            command = [sys.executable, "-m", "benchmarks.peers.torch_pipeline", sys.argv[1], store]
            with subprocess.Popen(command, stdin=subprocess.DEVNULL):
                join(0, store)
                lead(config)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
