"""The baseline: the same network on one device with all cores, which a partition has to beat.

One device has no pipeline to fill, so its batch is one micro-batch, unless a memory limit needs
more of them. Its matrix products take all the cores that this process may use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from runtime.backends.device.processor import core_count
from runtime.planning.costs.prices import CostProvider
from runtime.planning.options import AUTO, NONE
from runtime.profiling.analysis.record import STEPS, WARM_UP
from runtime.profiling.trials.trial import Shared, Trial
from runtime.training.job import Planned, machine_of, samples_of, training_plan
from runtime.transports import Cluster
from symgraph.app.config import Config, PartitionConfig, PipelineConfig
from symgraph.core.context import Context
from symgraph.core.errors import LimitError, MicroBatchError
from symgraph.core.units import count_text, seconds_text

ONE = "one device"
FAR_OFF = 2.0  # times as far from the prediction as the partition: one device was disturbed
THREADS = "threads"  # the transport of a device that no other one talks to


def baseline_of(config: Config) -> Config:
    """Return the config of the same network on one of its devices.

    That is the fastest of a machine file, or else the first GPU, or else the first device.
    """
    return _alone(config, _by_speed(config)[0])


def _alone(config: Config, device: str) -> Config:
    kept = {key: getattr(config.partition, key) for key in ("memory", "costs", "objective")}
    update = {"devices": (device,), "partition": PartitionConfig(**kept), "transport": THREADS}
    return _network(config).model_copy(update=update)


def _by_speed(config: Config) -> list[str]:
    """Return the devices to try: those of a machine file, the fastest first, or else one."""
    machine = machine_of(config)
    if machine is not None:
        order = sorted(machine.devices, key=lambda device: -device.flops)
        return [str(device.context) for device in order]
    kinds = [Context.parse(device).kind for device in config.devices]
    return [config.devices[kinds.index("gpu") if "gpu" in kinds else 0]]


def is_baseline(config: Config, of: Config) -> bool:
    """Return whether a config measures the network of another one on one device, fairly."""
    pipeline = config.pipeline
    limited = config.partition.memory is not None or config.machine is not None
    whole = pipeline.micro_batches in (1, AUTO) or limited
    return (
        len(config.devices) == 1
        and whole
        and pipeline.time_segment is None
        and config.blas_threads in (AUTO, core_count())
        and _network(config) == _network(of)
    )


def _network(config: Config) -> Config:
    """Return a config without what says where and how its network runs, but for its limits."""
    return config.model_copy(
        update={
            "devices": (),
            "group2ctx": {},
            "partition": PartitionConfig(memory=config.partition.memory),
            "pipeline": PipelineConfig(),
            "train": config.train.model_copy(update={"shard_optimizer": False}),
            "checkpoint": None,
            "restarts": None,
            "candidates": {},
            "transport": AUTO,
            "blas_threads": AUTO,
        }
    )


def baselines_of(configs: Mapping[str, Config]) -> dict[str, Config]:
    """Return the candidates of which a baseline is lacking, by its name: one for each network."""
    found: dict[str, Config] = {}
    for name, config in configs.items():
        known = [*configs.values(), *map(baseline_of, found.values())]
        if len(config.devices) > 1 and not any(is_baseline(one, config) for one in known):
            wanted = (ONE, f"{ONE}: {name}", f"{ONE} with {cores_text(core_count())}: {name}")
            free = [title for title in wanted if title not in {*configs, *found}]
            found[free[0]] = config
    return found


def plan_baseline(config: Config, pricing: CostProvider) -> Planned:
    """Plan a config's baseline on the fastest device that can hold it.

    It has the fewest micro-batches that keep to the memory limit.

    Raises:
        LimitError: the network does not fit one device, even if it runs forward again.
    """
    limits: list[LimitError] = []
    counts = [1 << n for n in range(samples_of(config).bit_length())]
    for device, recompute in product(_by_speed(config), (NONE, AUTO)):
        for count in counts:
            pipeline = PipelineConfig(micro_batches=count, recompute=recompute)
            one = _alone(config, device).model_copy(update={"pipeline": pipeline})
            try:
                return training_plan(one, pricing)
            except LimitError as error:
                limits.append(error)
            except MicroBatchError:  # the network mixes the samples of a batch
                break
    raise limits[-1]


def one_device(
    config: Config, cluster: Cluster, *, shared: Shared, steps: int = STEPS, warm_up: int = WARM_UP
) -> Trial | str:
    """Plan and set up a baseline; return why not, if one device cannot hold the network.

    Args:
        config: the config whose baseline it is.
        cluster: its cluster of one rank.
        shared, steps, warm_up: see Trial.of.
    """
    try:
        planned = plan_baseline(config, shared.pricing(cluster, baseline_of(config)))
        return Trial.of(
            planned.config, cluster, steps=steps, shared=shared, planned=planned, warm_up=warm_up
        )
    except (LimitError, MemoryError) as error:
        return str(error)


# -- words and figures -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """The gain of a partition over one device."""

    #: The devices of the partition.
    devices: Sequence[str]
    #: Seconds of the partition's step.
    step: float
    #: The one device.
    device: str
    #: Seconds of a step on it; None: it cannot hold the network.
    alone: float | None = None
    #: Whether the spreads of the two steps do not overlap.
    clear: bool = True
    #: The micro-batches of one device.
    micro_batches: int = 1
    #: The threads of its matrix products; 0: it is simulated.
    threads: int = 0
    #: Which of several partitions this is; "": there is no other.
    name: str = ""
    #: Why one device cannot hold the network.
    reason: str = ""
    #: What the seconds are of.
    what: str = "a step"
    #: How many of the devices have a stage; 0: all.
    used: int = 0
    #: Seconds measured beside those predicted: of the partition, and of one device.
    slow: float = 1.0
    slow_alone: float = 1.0

    @property
    def speedup(self) -> float | None:
        """The time of a step on one device divided by the partition's; None: not known."""
        return None if self.alone is None else self.alone / self.step

    @property
    def pays(self) -> bool | None:
        """Whether the partition is faster than one device; None: that is not clear."""
        if self.alone is None:
            return True
        return self.step < self.alone if self.clear else None

    def lines(self) -> list[str]:
        """Return the verdict in one sentence, and what the one device is in another."""
        many = count_text(len(self.devices), "device")
        if 0 < self.used < len(self.devices):
            many = f"{self.used} of {many}"
        if self.alone is None:
            return [f"{many}: one device alone cannot hold this network: {self.reason}"]
        one, times = self._one(), self.alone / self.step
        step, alone = seconds_text(self.step), seconds_text(self.alone)
        how = "" if self.threads else ", both simulated"
        if not self.clear:
            verdict = (
                f"no clear gain: {self.what} takes {step} on {many} and {alone} on {one}, and "
                "their spreads overlap"
            )
        elif times > 1:
            verdict = f"{many}: {times:.2f} times as fast as {one} ({step} beside {alone}{how})"
        else:
            verdict = (
                f"does not pay: {one} is {1 / times:.2f} times as fast as {many} "
                f"({alone} beside {step}{how})"
            )
        return [verdict, self._about(many), *self._doubt(many)]

    def _doubt(self, many: str) -> list[str]:
        """Say that a gain is not the partition's if one device was slowed down far more."""
        if not self.pays or self.slow_alone < FAR_OFF * max(1.0, self.slow):
            return []
        return [
            f"do not trust this gain: one device took {self.slow_alone:.1f} times as long as "
            f"predicted, {many} {self.slow:.1f} times, as other programs on its cores make the "
            "threads of its matrix products wait for each other"
        ]

    @property
    def _cores(self) -> int:
        """The threads of its matrix products, if it is a CPU."""
        return self.threads if self.device.startswith("cpu") else 0

    def _one(self) -> str:
        return f"{ONE} with {cores_text(self._cores)}" if self._cores else f"{ONE} alone"

    def _about(self, many: str) -> str:
        limit = " to keep to the memory limit" if self.micro_batches > 1 else ""
        words = [
            f"{many}: {self.name}; " if self.name else "",
            f"{ONE}: {self.device}, {count_text(self.micro_batches, 'micro-batch')}{limit}",
            f", {count_text(self._cores, 'thread')} in matrix products" if self._cores else "",
        ]
        return "".join(words)

    def figures(self) -> dict[str, Any]:
        """Return the key `baseline` of `--json`."""
        return {
            "verdict": self.lines()[0],
            "pays": self.pays,
            "speedup": self.speedup,
            "partition": self.name or None,
            "partition_step_seconds": self.step,
            "step_seconds": self.alone,
            "devices": [self.device],
            "micro_batches": None if self.alone is None else self.micro_batches,
            "blas_threads": self.threads or None,
            "simulated": self.alone is not None and not self.threads,
        }


def cores_text(count: int) -> str:
    """Return words for all of some cores."""
    return {1: "its only core", 2: "both cores"}.get(count, f"all {count} cores")
