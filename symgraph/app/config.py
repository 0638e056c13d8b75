"""Config files: their keys as pydantic models, reading, overrides and checks.

`load_config` reports one mistake at a time, the first of the file, in one line that names the file,
the line, the key and the remedy. For a mistake on the command line it names the override.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, FiniteFloat

from symgraph.app.config_values import (
    AutoOrCount,
    AutoOrPositive,
    Bytes,
    Count,
    Device,
    Devices,
    ListOf,
    NotNegative,
    Pieces,
    Positive,
    Stages,
    TimeSteps,
)
from symgraph.app.constraint_config import Constraint, constrained_devices
from symgraph.app.data_config import BY_TIME, DataConfig, data_mistakes, kind_of
from symgraph.app.model_config import LossConfig, model_path, opened
from symgraph.app.named_files import SCHEDULE_FILES, file_mistakes
from symgraph.core.context import Context
from symgraph.core.errors import ConfigError, nearest
from symgraph.core.yaml_check import Section, checked, sections
from symgraph.core.yaml_lines import KeyPath, written
from symgraph.frontend import lr_scheduler
from symgraph.frontend.optimizer import OPTIMIZERS


class PipelineConfig(Section):
    """How a batch passes through the stages."""

    schedule: str = "1f1b"
    """Order of the runs: gpipe, gpipe-2bp, 1f1b, interleaved, looped-bfs, zb-h1, zb-h2, zb-v,
    dualpipe-v, wavefront, auto (the shortest predicted step of all), or a file of runs (.csv,
    .txt)."""
    order: Literal["reverse", "forward"] | None = None
    """Order of gpipe's backward micro-batches; null: reverse."""
    micro_batches: AutoOrCount = 1
    """Number of parts that a batch is split into; auto: the shortest predicted step."""
    time_segment: TimeSteps = None
    """Time steps of an unrolled network that a stage runs at once, while the next stage works on
    earlier ones; auto: the shortest predicted step; null: all time steps."""
    recompute: Stages = "none"
    """Stages that run forward again in the backward phase instead of keeping activations: none,
    all, auto (as many as partition.memory requires), or a list such as [0, 1]."""


class PartitionConfig(Section):
    """How the network is placed on devices."""

    strategy: str | None = None
    """Strategy that places the network: uniform, parameters, chain, optimal, noncontiguous, refine,
    or auto (the shortest predicted step of all); groups of group2ctx keep their devices. null:
    group2ctx places everything."""
    keep_groups: bool = False
    """Whether a strategy keeps the nodes of one ctx_group together."""
    objective: Literal["step", "throughput", "latency"] = "step"
    """The quantity that strategy auto minimizes: the time of a step with all micro-batches, the
    load of the slowest device (as in an endless pipeline), or the time of one micro-batch alone. A
    network without a loss is also ranked by it: by throughput (step means the same), or by the
    latency of a batch with all micro-batches."""
    split_tied: bool = False
    """Whether a strategy may send a parameter to devices other than its own."""
    split: Literal["auto", "none"] = "auto"
    """Whether strategy auto may put a heavy group that is not in group2ctx on several devices, with
    its operators in shards or the whole group replicated, or arrange the devices as a grid."""
    shards: Mapping[str, Pieces] = {}
    """ctx_group -> pieces that its operators are split into, along classes, words or filters: a
    number, a proportion such as "54:46", or "devices" for one piece per device of group2ctx."""
    replicas: Mapping[str, Pieces] = {}
    """ctx_group -> copies, each of which runs a share of the samples: a number, or "devices"."""
    data_axis: Count | None = None
    """Rows of the grid of devices, each of which runs its share of the samples: the network is
    placed on the first row, copies of it on the others. null: all devices divided by model_axis;
    without that, one row, or as many as strategy auto finds best."""
    replicas_near: bool = False
    """Whether the devices of a column of the grid follow each other, not those of a row, so that
    gradients are summed between devices that are near each other."""
    model_axis: Count | None = None
    """Devices of a row; null: all devices divided by the number of rows."""
    constraints: Annotated[tuple[Constraint, ...], Field(strict=False)] = ()
    """Demands on the placement, a list of: together: [a, b]; apart: [a, b]; pin: {a: cpu(0)};
    not_on: {a: cpu(0)}; at_most: {a: 2} devices, or 2 for all; same: {b: a}, node by node; split:
    {a: samples, classes or none}. a and b are groups, nodes, or patterns such as "layer*"."""
    memory: Bytes = None
    """Bytes that each device may hold, such as 4GiB; a schedule that needs more is an error."""
    costs: str | None = None
    """File of measured kernel times, written by --save-costs, to plan with; null: they are measured
    when they are needed."""


class Warmup(Section):
    """Keys common to all learning-rate schedules; all keys are MXNet's."""

    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of the warm-up."""
    warmup_begin_lr: NotNegative = 0.0
    """Learning rate at the start of the warm-up."""
    warmup_mode: Literal["linear", "constant"] = "linear"
    """linear: rise to the learning rate; constant: stay at warmup_begin_lr during the warm-up."""


class FactorSchedule(Warmup):
    """Multiply the learning rate by a factor every `step` steps."""

    kind: Literal["factor"]
    step: Count
    """Steps between two changes."""
    factor: Annotated[Positive, Field(le=1)]
    """Multiplier of each change."""
    stop_factor_lr: NotNegative = 1e-8
    """Lower bound of the learning rate."""


class MultiFactorSchedule(Warmup):
    """Multiply the learning rate by a factor at each listed step."""

    kind: Literal["multi_factor"]
    step: Annotated[tuple[Count, ...], ListOf]
    """Steps of the changes, in rising order."""
    factor: Annotated[Positive, Field(le=1)]
    """Multiplier of each change."""


class PolySchedule(Warmup):
    """Descend to a final learning rate along a power of the share of steps left."""

    kind: Literal["poly"]
    max_update: Count
    """Step at which final_lr is reached."""
    pwr: Positive = 2.0
    """Power of the share of steps left."""
    final_lr: NotNegative = 0.0
    """Learning rate from max_update on."""


class CosineSchedule(Warmup):
    """Descend to a final learning rate along half a cosine."""

    kind: Literal["cosine"]
    max_update: Count
    """Step at which final_lr is reached."""
    final_lr: NotNegative = 0.0
    """Learning rate from max_update on."""


LrSchedule = Annotated[
    FactorSchedule | MultiFactorSchedule | PolySchedule | CosineSchedule,
    Field(discriminator="kind"),
]


class TrainConfig(Section):
    """How the weights are updated, and for how long: until the first limit is reached."""

    optimizer: str = "sgd"
    """Update rule: sgd, nag, signum, sgld, adam, adamw, adamax, nadam, rmsprop, adagrad, adadelta,
    ftrl, ftml or lamb."""
    learning_rate: Positive | None = None
    """Learning rate, before any lr_schedule; null: the optimizer's default."""
    momentum: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.0
    """Momentum of sgd, nag and signum (0: the rule's own default)."""
    weight_decay: NotNegative = 0.0
    """L2 penalty on the weights."""
    lr_schedule: LrSchedule | None = None
    """Change of the learning rate, such as {kind: cosine, max_update: 500}. Other kinds: poly
    (max_update, pwr, final_lr), factor and multi_factor (step, factor); all take warmup_steps."""
    clip_global_norm: Positive | None = None
    """Largest L2 norm of the gradients of all stages together; null: no clipping."""
    epochs: Count | None = None
    """Limit: passes over the data; 1 if there is no other limit."""
    steps: Count | None = None
    """Limit: steps."""
    seconds: Positive | None = None
    """Limit: seconds; the step that is running then is completed."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """Seed of initial weights and dropout."""
    dtype: Literal["float32", "float64"] = "float32"
    """Type of weights and activations."""
    precision: Literal["float32", "float16", "bfloat16", "auto"] = "float32"
    """Type of activations in products, and of messages; weights, losses, norms and long sums stay
    float32. float32: the type of `dtype`. auto, for `symgraph search` only: float32 or bfloat16."""
    loss_scale: AutoOrPositive = "auto"
    """Factor of gradients until the update, so that float16 can represent small ones; auto: for
    float16 the largest that does not overflow (steps that do are skipped), otherwise 1."""
    shard_optimizer: bool | Literal["auto"] = "auto"
    """Whether each replica keeps the optimizer's arrays (momentum, Adam's moments) of its own part
    of the parameters only, updates that part, and sends it to the others (ZeRO-1); same results.
    auto: where that sends no more, without a norm of the gradients or between threads."""
    on_nan: Literal["stop", "skip", "ignore"] = "stop"
    """When a step's loss, or the norm that is clipped or scaled, is not finite: stop: end with an
    error that names the first such value; skip: leave the update out; ignore: make it."""
    init_scale: Positive = 0.1
    """Weights without an initializer start uniform between minus and plus this value."""

    @property
    def epoch_limit(self) -> int | None:
        """The limit in epochs: one if the file sets no limit at all."""
        unlimited = self.epochs is None and self.steps is None and self.seconds is None
        return 1 if unlimited else self.epochs

    @property
    def base_rate(self) -> float:
        """The learning rate of the file, or the optimizer's default."""
        return self.learning_rate or OPTIMIZERS[self.optimizer].DEFAULT_RATE


class EvaluateConfig(Section):
    """When to measure on the held-out part of the data; the end of training always is."""

    every: Count | None = None
    """Steps between two evaluations; null: only at the end."""
    tokens: Count | None = None
    """Largest number of held-out tokens (of other data than text: samples) to use; null: all."""
    metrics: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Metrics of the held-out part besides the loss, by MXNet's names, such as [accuracy, f1]; they
    compare the network's loss outputs with their labels."""


class CheckpointConfig(Section):
    """When to save checkpoints, and whether to resume from one."""

    directory: str
    """Folder of the checkpoints; all ranks of an MPI run share it."""
    every: Count | None = None
    """Steps between two checkpoints; null: only at the end."""
    keep: Count = 2
    """Number of newest checkpoints to keep."""
    resume: Literal["auto", "never"] = "auto"
    """auto: resume from the newest checkpoint of the folder, if there is one."""
    fallback: bool = False
    """Whether to resume from the newest whole checkpoint if newer ones are damaged, which are then
    set aside; otherwise a damaged one is an error that names the whole one."""
    asynchronous: bool = True
    """Whether training goes on while a checkpoint is written, from a copy in memory that is as
    large as the checkpoint. The next one waits for the end of it."""


class RestartsConfig(Section):
    """Starting the run again when it fails, from its newest checkpoint, with the devices left."""

    count: Annotated[int, Field(ge=0)] = 3
    """Largest number of restarts."""
    launcher: str | None = None
    """Command that starts the ranks, such as "mpiexec -n {ranks}" or "mpiexec -n {ranks} -hosts
    {hosts}"; null: the devices are threads of one process."""
    hosts: Annotated[tuple[str, ...], ListOf] | None = None
    """Host of each device, for {hosts} of the launcher: those of the devices that take part."""


class Config(Section):
    """A training run. Files to read are looked for in the config's folder, then in the current one;
    what a run writes is relative to the current folder."""

    model: Annotated[str, AfterValidator(model_path)]
    """Python function that builds the network: package.module:function, or file.py:function with a
    file in the config's folder; or a network in a file: .onnx, .pt2 (as torch.export.save writes
    it) or .json (as MXNet's Symbol.save does)."""
    args: Mapping[str, Any] = {}
    """Keyword arguments of that function; of a file: shapes of inputs by name, with 0 for the batch
    (.onnx, .pt2, .json), constants (.onnx: values of inputs by name), params (.json: the file of
    the parameters)."""
    loss: LossConfig | None = None
    """A loss to add to a network that ends in predictions; null: it has losses of its own, or runs
    forward only."""
    data: DataConfig
    """The data to train on; its keys depend on its kind."""
    devices: Annotated[tuple[Device, ...], ListOf] = ("cpu(0)",)
    """Devices to use, such as [cpu(0), cpu(1)]; with MPI, one per rank. Without this key: the
    devices of group2ctx."""
    machine: str | None = None
    """File with speeds and links of the devices to plan for, as `symgraph machine` writes it; null:
    this machine, as measured."""
    group2ctx: Mapping[str, Devices] = {}
    """Device of each ctx_group of the network, or a list of devices for a group in shards or
    replicas. If `devices` lists only one device, all groups are on that one."""
    partition: PartitionConfig = PartitionConfig()
    """How the network is placed on devices."""
    pipeline: PipelineConfig = PipelineConfig()
    """How a batch passes through the stages."""
    train: TrainConfig = TrainConfig()
    """How the weights are updated, and for how long."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """When to measure on held-out data."""
    checkpoint: CheckpointConfig | None = None
    """Saving and resuming; null: neither."""
    restarts: RestartsConfig | None = None
    """Restarts after a failure; null: none."""
    candidates: Mapping[str, Annotated[tuple[str, ...], Field(strict=False)]] = {}
    """For `symgraph compare`: name -> overrides of this config, such as
    [pipeline.schedule=gpipe]."""
    transport: Literal["auto", "threads", "mpi", "nccl"] = "auto"
    """How devices exchange arrays; auto: mpi under mpiexec, threads otherwise. nccl: as mpi, but
    with messages from GPU to GPU, one GPU per rank."""
    blas: Literal["auto", "openblas", "mkl"] = "auto"
    """Library of matrix products on CPUs: openblas: numpy's own, with packed kernels for few rows
    and bfloat16; mkl: MKL (extra `mkl`) for all; auto: the fastest of these on this machine for
    each kind of product. Each gives other bits."""
    blas_threads: AutoOrCount = "auto"
    """Threads of a matrix product; auto: the cores divided by the number of devices."""
    timeout: Positive = 300.0
    """Seconds to wait for another device before giving up."""
    heartbeat: Positive = 20.0
    """Seconds of silence after which an MPI rank counts as lost: it was stopped, its host is down,
    or the link is cut."""

    @property
    def groups(self) -> dict[str, Context | tuple[Context, ...]]:
        """The devices of group2ctx."""
        return {
            group: Context.parse(devices)
            if isinstance(devices, str)
            else tuple(Context.parse(d) for d in devices)
            for group, devices in self.group2ctx.items()
        }

    def to_yaml(self) -> str:
        """Write the config as YAML, with all defaults; `load_config` reads an equal one."""
        return written(self.model_dump(mode="json"))


def key_help(model: type[Section] = Config, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (key, default, meaning) of every key of a config file, for `--keys`."""
    meanings = model.meanings()
    for name, info in model.model_fields.items():
        inner = sections(info.annotation)
        if len({*inner.values()}) == 1:
            yield from key_help(next(iter(inner.values())), f"{prefix}{name}.")
        elif inner:
            yield from _help_of_kinds(inner, f"{prefix}{name}.")
        else:
            default = "required" if info.is_required() else _flow(info.default)
            yield prefix + name, default, meanings.get(name, "")


def _help_of_kinds(
    kinds: Mapping[str, type[Section]], prefix: str
) -> Iterator[tuple[str, str, str]]:
    """Yield the keys of a section of several kinds, with the kinds that have them."""
    owners: dict[tuple[str, str, str], list[str]] = {}
    for kind, section in kinds.items():
        for row in key_help(section, prefix):
            owners.setdefault(row, []).append(kind)
    for (key, default, meaning), names in owners.items():
        if meaning:
            yield key, default, f"Of kind {', '.join(names)}:\n{meaning}"


def _flow(value: object) -> str:
    """Format a default as YAML on one line."""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True).removesuffix("...\n").strip()


def load_config(
    path: str,
    overrides: Sequence[str] = (),
    *,
    schedules: Collection[str] | None = None,
    strategies: Collection[str] | None = None,
    synthetic: bool = False,
) -> Config:
    """Read a config file, apply `key.path=value` overrides, and check it.

    Args:
        path: the YAML file, or a model file (`opened` tells what becomes of it).
        overrides: changes of keys, such as "pipeline.micro_batches=8".
        schedules: known names of pipeline.schedule besides auto; None accepts any.
        strategies: known names of partition.strategy besides auto; None accepts any.
        synthetic: whether a config without `data` is given random data.

    Raises:
        ConfigError: one line for the first mistake; missing keys are reported last.
    """
    document = opened(path, overrides)
    _complete(document.data, synthetic=synthetic)
    _gather(document.data)
    return checked(
        document,
        Config,
        lambda config: (
            *_contradictions(document.data, schedules, strategies),
            *_schedule_mistake(config),
            *_constraint_mistakes(config),
        ),
    )


def _complete(data: dict[str, Any], *, synthetic: bool) -> None:
    """Set keys whose defaults depend on others: devices, the kind of data, rows of a grid."""
    data.setdefault("devices", _named_devices(data))
    _count_rows(data["devices"], data.get("partition"))
    if synthetic:
        data.setdefault("data", {})
    if isinstance(source := data.get("data"), dict):
        source.setdefault("kind", kind_of(source))


def _count_rows(devices: object, partition: object) -> None:
    """Set `data_axis` if `model_axis` alone is given, and fits the devices."""
    if not isinstance(devices, list) or not isinstance(partition, dict):
        return
    length = partition.get("model_axis")
    if not isinstance(length, int) or length < 1 or partition.get("data_axis") is not None:
        return
    if devices and len(devices) % length == 0:
        partition["data_axis"] = len(devices) // length


def _named_devices(data: Mapping[str, Any]) -> list[str]:
    """List the devices of group2ctx in order; without any, the default."""
    devices = [repr(device) for device in sorted({device for _, device in _placed(data)})]
    return devices or list(Config.model_fields["devices"].default)


def _gather(data: dict[str, Any]) -> None:
    """Put all groups on the only device, if `devices` lists no other."""
    listed = data["devices"]
    only = _context(listed[0]) if isinstance(listed, list) and len(listed) == 1 else None
    for group, device in list(_placed(data)):
        if only not in (None, device):
            data["group2ctx"][group] = repr(only)


def _placed(data: Mapping[str, Any]) -> Iterator[tuple[str, Context]]:
    """Yield each group of group2ctx with each of its devices."""
    groups = data.get("group2ctx")
    for group, devices in groups.items() if isinstance(groups, dict) else ():
        for text in devices if isinstance(devices, list) else [devices]:
            if (device := _context(text)) is not None:
                yield group, device


def _contradictions(
    data: Mapping[str, Any],
    schedules: Collection[str] | None,
    strategies: Collection[str] | None,
) -> Iterator[tuple[KeyPath, str]]:
    """Yield mistakes that types do not show, from unchecked data with possibly more mistakes."""
    corpus, pipeline, train, partition = (
        section if isinstance(section := data.get(name), dict) else {}
        for name in ("data", "pipeline", "train", "partition")
    )
    yield from data_mistakes(corpus)
    yield from _device_mistakes(data)
    if isinstance(machine := data.get("machine"), str):
        yield from file_mistakes(("machine",), machine)
        if train.get("precision") == "auto":
            message = "auto compares measured losses, but `machine` describes other devices"
            yield ("train", "precision"), message
    if isinstance(costs := partition.get("costs"), str):
        if machine is not None:
            message = (
                "are this machine's, but `machine` describes another one; remove one of the keys"
            )
            yield ("partition", "costs"), message
        yield from file_mistakes(("partition", "costs"), costs)
    yield from _schedule_name_mistakes(pipeline, schedules)
    yield from _unknown(("partition", "strategy"), partition, _with_auto(strategies))
    yield from _unknown(("train", "optimizer"), train, OPTIMIZERS)
    if train.get("precision", "float32") != "float32" and train.get("dtype") == "float64":
        message = f"{train['precision']} needs weights of float32, not train.dtype: float64"
        yield ("train", "precision"), message
    parts, batch = pipeline.get("micro_batches"), corpus.get("batch_size")
    if isinstance(parts, int) and isinstance(batch, int) and 1 <= batch < parts:
        yield ("pipeline", "micro_batches"), f"{parts} is more than data.batch_size ({batch})"
    if parts == "auto" and corpus.get("micro_batches") == BY_TIME:
        message = "data.micro_batches: by_time needs a number, which says how long a piece may be"
        yield ("pipeline", "micro_batches"), message
    rule = train.get("optimizer", TrainConfig.model_fields["optimizer"].default)
    known = isinstance(rule, str) and rule in OPTIMIZERS
    if known and train.get("momentum") and not hasattr(OPTIMIZERS[rule], "momentum"):
        yield ("train", "momentum"), f"optimizer {rule} has no momentum; remove this key"


def _schedule_name_mistakes(
    pipeline: Mapping[str, Any], schedules: Collection[str] | None
) -> Iterator[tuple[KeyPath, str]]:
    name = pipeline.get("schedule", PipelineConfig.model_fields["schedule"].default)
    if isinstance(name, str) and name.endswith(SCHEDULE_FILES):
        if not Path(name).is_file():
            yield ("pipeline", "schedule"), f"no such file: {name}"
    else:
        yield from _unknown(("pipeline", "schedule"), pipeline, _with_auto(schedules))
    if pipeline.get("order") is not None and name != "gpipe":
        yield (
            ("pipeline", "order"),
            f"applies to the schedule gpipe, not to {name}; remove this key",
        )


def _unknown(
    path: tuple[str, str], section: Mapping[str, Any], known: Collection[str] | None
) -> Iterator[tuple[KeyPath, str]]:
    name = section.get(path[1])
    if known is not None and isinstance(name, str) and name not in known:
        yield path, f"unknown value {name!r}: {nearest(name, known)}"


def _with_auto(known: Collection[str] | None) -> Collection[str] | None:
    return None if known is None else [*known, "auto"]


def _device_mistakes(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield devices listed twice, and groups on devices that are not listed."""
    listed = data["devices"]
    devices = [_context(text) for text in listed] if isinstance(listed, list) else []
    known = [device for device in devices if device is not None]
    for i, device in enumerate(devices):
        if device is not None and device in devices[:i]:
            yield ("devices", i), f"{device} is listed twice"
    if not known or len(set(known)) < len(devices):  # these mistakes are already reported
        return
    for group, device in _placed(data):
        if device not in known:
            message = f"group {group!r} is on {device}, which is not in devices"
            yield ("group2ctx", group), f"{message}: {nearest(repr(device), map(repr, known))}"


def _constraint_mistakes(config: Config | None) -> Iterator[tuple[KeyPath, str]]:
    """Yield constraints with devices that are not listed."""
    for i, constraint in enumerate(() if config is None else config.partition.constraints):
        for device in constrained_devices(constraint):
            if config is not None and device not in config.devices:
                known = nearest(device, config.devices)
                yield ("partition", "constraints", i), f"{device} is not in devices: {known}"


def _context(text: object) -> Context | None:
    """Parse a device; None if it is not one."""
    try:
        return Context.parse(text) if isinstance(text, str) else None
    except ConfigError:
        return None


def _schedule_mistake(config: Config | None) -> Iterator[tuple[KeyPath, str]]:
    """Yield the mistake of train.lr_schedule if its keys contradict each other."""
    if config is None or config.train.lr_schedule is None:
        return
    try:
        arguments = config.train.lr_schedule.model_dump()
        lr_scheduler.create(**arguments, base_lr=config.train.base_rate)
    except ConfigError as error:
        yield ("train", "lr_schedule"), str(error)
