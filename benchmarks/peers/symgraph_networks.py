"""symgraph: the networks of the benchmark, as in examples/, run as a user would run them.

    python -m benchmarks.peers.symgraph_networks CONFIG [--devices 2] [--forward] [--bfloat16]
        [--gradients FILE.npz] [KEY=VALUE ...]

--gpus 2 uses gpu(0) and gpu(1) instead of cores. On two devices a language model's decoder and the
channels of VGG are split over both, and the planner chooses everything else except KEY=VALUE:
fields of runtime.Options, such as micro_batches=2 time_segment=5. With --even the planner chooses
nothing: each device has as many layers of a language model as the next.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

import symgraph as sg
from benchmarks.peers.protocol import (
    ADAM_RATE,
    CLIP,
    CONFIGS,
    DECAY,
    MOMENTUM,
    RATE,
    SIDE,
    VGG_RATE,
    VOCAB,
    AnyConfig,
    Config,
    Images,
    Translation,
    batches,
    images,
    serve,
    translations,
)
from examples import lstm_lm, transformer_lm
from examples.seq2seq_attention.network import network
from examples.seq2seq_attention.numerals import Key, provide
from examples.vgg_channel_parallel import VGG
from runtime import (
    Buckets,
    BucketSession,
    Cluster,
    Options,
    Plan,
    Session,
    initialize,
    limit_blas,
    make_cluster,
    plan,
)
from runtime.backends.device.arrays import device
from runtime.planning.mixed_step import predict
from runtime.planning.step import StepPrograms
from runtime.profiling.calibration.pricing import measured_prices
from symgraph import Feed, Symbol, TensorType
from symgraph.core.types import Array
from symgraph.io import DataBatch

GRADIENT_RATE = 2.0**20  # at which the change of a step is the gradient, to float32's last bits
SEED = 1

AUTO = dict.fromkeys(("strategy", "schedule", "time_segment"), "auto")
PIECES = {"micro_batches": "auto"}  # where time steps alone do not fill a pipeline
Contexts = tuple[sg.Context, ...]


class Job(NamedTuple):
    """A network that is planned, and what its steps are given."""

    planned: Plan | Buckets
    #: What each update of each step is given: values by name, or a batch of a bucket.
    data: list[list[Any]]
    init: sg.init.Initializer
    optimizer: sg.optimizer.Optimizer
    clip: float | None = CLIP

    @property
    def plan(self) -> Plan:
        return self.planned.default if isinstance(self.planned, Buckets) else self.planned

    def session(self, cluster: Cluster, optimizer: sg.optimizer.Optimizer | None = None) -> Session:
        """Make a session with first values that trains if the plan does."""
        arrays = initialize(self.plan, cluster, self.init, SEED)
        kind: Any = BucketSession if isinstance(self.planned, Buckets) else Session
        if not self.plan.grads:
            return kind(self.planned, cluster, arrays)
        optimizer, clip = optimizer or self.optimizer, None if optimizer else self.clip
        return kind(self.planned, cluster, arrays, optimizer=optimizer, clip=clip)


def update(session: Session, given: Mapping[str, Array] | DataBatch) -> float:
    """Run on one batch; return its loss."""
    of_bucket = isinstance(given, DataBatch)
    figures = session.step_batches([given]) if of_bucket else session.step(given)
    figures = figures or session.collect()  # what runs forward only keeps its sums
    return figures["nll_nll"] / figures["nll_count"]


def even_groups(config: Config, contexts: Contexts) -> dict[str, sg.Context]:
    """Place the same number of layers on each device, or one more."""
    layers, count = config.layers, len(contexts)
    if layers < count:
        raise SystemExit(f"{layers} layers cannot be split evenly over {count} devices")
    of_layers = {f"layer{i}": contexts[i * count // layers] for i in range(layers)}
    return {"embed": contexts[0], **of_layers, "decode": contexts[-1]}


def language_model(
    config: Config, options: Options, given: Mapping[str, Any], *, train: bool, even: bool
) -> Job:
    """Plan a language model; given: the user's options."""
    sizes = config.batch, config.steps, VOCAB, config.layers, config.hidden
    if config.heads:
        model = transformer_lm.build(*sizes, config.heads)
    else:
        model = lstm_lm.build(*sizes, config.hidden, residual=False)
    options = replace(options, states=model.states)
    if even:
        options = replace(options, groups=even_groups(config, options.devices))
    elif len(options.devices) > 1:
        pieces = PIECES if config.heads else {}
        options = replace(options, groups={"decode": options.devices}, **AUTO, **pieces)
    return Job(
        plan(model.symbol, model.feeds, replace(options, **given), wrt=None if train else ()),
        [
            [{"data": data.astype("int32"), "label": label.astype("int32")}]
            for data, label in batches(config)
        ],
        sg.init.Uniform(config.hidden**-0.5),
        sg.optimizer.SGD(RATE),
    )


def translation(
    config: Translation, options: Options, given: Mapping[str, Any], *, train: bool
) -> Job:
    """Plan seq2seq by its largest bucket."""

    def bucket(key: Key) -> tuple[Symbol, list[str], list[str]]:
        symbol, *names = network(key, config.hidden, VOCAB)
        return symbol[:-1], *names  # not how many sentences are right

    def batch(key: Key, arrays: Mapping[str, Array]) -> DataBatch:
        *data, label = (array.astype("int32") for array in arrays.values())
        inputs, labels = provide(key, config.batch)
        return DataBatch(data, [label], bucket_key=key, provide_data=inputs, provide_label=labels)

    if len(options.devices) > 1:
        options = replace(options, **AUTO, **PIECES)
    options = replace(options, slots=2, clips=train)  # slots: of Adam
    inputs, labels = provide(config.buckets[-1], config.batch)
    default = config.buckets[-1], [*inputs, *labels], replace(options, **given)
    return Job(
        Buckets(bucket, *default, train=train),
        [
            [batch(*pair) for pair in zip(config.buckets, step, strict=True)]
            for step in translations(config)
        ],
        sg.init.Uniform(config.hidden**-0.5),
        sg.optimizer.create("adam", learning_rate=ADAM_RATE),
    )


def classifier(config: Images, options: Options, given: Mapping[str, Any], *, train: bool) -> Job:
    """Plan VGG-16, the channels of each convolution divided among the devices."""
    contexts = options.devices
    symbol = VGG(len(contexts), "sharded", dropout=0.0).network()
    feeds = {
        "data": Feed(TensorType((config.batch, 3, SIDE, SIDE), "float32")),
        "label": Feed(TensorType((config.batch,), "int32")),
    }
    groups = {f"rank{i}": context for i, context in enumerate(contexts)}
    options = replace(options, groups=groups, slots=1)  # of momentum
    return Job(
        plan(symbol, feeds, replace(options, **given), wrt=None if train else ()),
        [[{"data": data, "label": label.astype("int32")}] for data, label in images(config)],
        sg.init.MSRAPrelu("in", 0.0),
        sg.optimizer.SGD(VGG_RATE, momentum=MOMENTUM, wd=DECAY),
        None,
    )


def make_job(
    config: AnyConfig,
    contexts: Contexts,
    given: Mapping[str, Any],
    *,
    train: bool = True,
    even: bool = False,
) -> Job:
    """Plan a configuration on devices; given: the user's options."""
    options = Options(default=contexts[0], devices=contexts, update=train, whole=False)
    options = replace(options, shard_optimizer=train)  # as a config's `auto` between threads
    if isinstance(config, Translation):
        return translation(config, options, given, train=train)
    if isinstance(config, Images):
        return classifier(config, options, given, train=train)
    return language_model(config, options, given, train=train, even=even)


def save_gradients(path: Path, job: Job, count: int, threads: int) -> None:
    """Save weights, the first batch, its loss and gradients, computed by an update of the plan.

    Plain descent at a huge rate leaves minus the gradient times that rate.

    Args:
        path, job: the file, and what is run.
        count, threads: how many devices there are, and how many threads each has.
    """
    first = job.data[0][0]
    with make_cluster("threads", count) as cluster, limit_blas(threads):
        session = job.session(cluster, sg.optimizer.SGD(GRADIENT_RATE))
        before = {name: array.copy() for name, array in session.parameters().items()}
        loss = update(session, first)
        trained = session.parameters()
    found = {f"weight {name}": array for name, array in before.items()}
    for name, after in trained.items():
        found[f"gradient {name}"] = (before[name] - after) / np.float32(GRADIENT_RATE)
    values = first.feeds if isinstance(first, DataBatch) else first
    fed = {f"fed {name}": ids.astype(np.int64) for name, ids in values.items()}
    np.savez(path, loss=np.float64(loss), **fed, **found)


def choice_of(made: Plan) -> str:
    """Describe the choice of the planner, and the rank of each weight."""
    chosen, placement = made.choice, made.partition.placement
    weights = (n for n in made.parameters if "weight" in n)
    ranks = " ".join(f"{n}:{placement.rank_of[placement.stage_of[n]]}" for n in weights)
    return (
        f"{chosen.schedule}, M={len(made.sizes)}, time_segment={chosen.time_segment}, "
        f"recompute={chosen.recompute}, weights on ranks {ranks}"
    )


def predicted(job: Job, contexts: Contexts) -> str:
    """Predict a step's updates from kernels that are measured one by one on their devices."""
    planned, batches = job.planned, job.data[0]
    plans = [job.plan] * len(batches)
    if isinstance(planned, Buckets):
        plans = [planned.plan(b.bucket_key, [*b.provide_data, *b.provide_label]) for b in batches]
    steps = [(StepPrograms.of(p), measured_prices(p.network.first, contexts)) for p in plans]
    seconds = sum(predict(*step).makespan for step in steps)
    return f"predicted {seconds * 1e3:.2f} ms a step"


def held_on_gpus(contexts: Contexts) -> int:
    """Return the bytes that this process has taken on the GPUs, as CuPy's pools know them."""
    pool = device(contexts[0]).xp.get_default_memory_pool()
    return int(pool.total_bytes()) + sum(device(c).set_aside_bytes for c in contexts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", choices=CONFIGS)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of a device for its products")
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="contexts on GPUs")
    parser.add_argument("--even", action="store_true", help="split the layers evenly")
    parser.add_argument("--forward", action="store_true", help="run forward only")
    parser.add_argument("--bfloat16", action="store_true", help="activations in bfloat16")
    parser.add_argument("--predict", action="store_true", help="say how long a step is to take")
    parser.add_argument("--gradients", type=Path, help="write a step's gradients to this file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    pairs = (text.partition("=") for text in options.overrides)
    given = {key: yaml.safe_load(value) for key, _, value in pairs}
    if options.bfloat16:
        given["precision"] = "bfloat16"
    kind, count = (sg.gpu, options.gpus) if options.gpus else (sg.cpu, options.devices)
    contexts = tuple(map(kind, range(count)))
    train = not options.forward
    job = make_job(CONFIGS[options.config], contexts, given, train=train, even=options.even)
    choice = [choice_of(job.plan)] if count > 1 else []
    if options.predict:
        choice.append(predicted(job, contexts))
    if options.gradients is not None:
        check = options.gradients, job, count, options.threads
        if options.gpus:  # which a forked process cannot use
            save_gradients(*check)
        else:  # in a process of its own, or its session counts as peak memory
            child = get_context("fork").Process(target=save_gradients, args=check)
            child.start()
            child.join()
            if child.exitcode:
                raise SystemExit(child.exitcode)
    with make_cluster("threads", count) as cluster, limit_blas(options.threads):
        session = job.session(cluster)
        serve(
            lambda number: [update(session, given) for given in job.data[number]][-1],
            f"symgraph {sg.__version__}, numpy {np.__version__}",
            choice="; ".join(choice),
            memory=(lambda: held_on_gpus(contexts)) if options.gpus else None,
        )


if __name__ == "__main__":
    main()
