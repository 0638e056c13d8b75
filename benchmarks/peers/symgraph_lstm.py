"""symgraph: the language models of examples/, trained as a user would train it.

    python -m benchmarks.peers.symgraph_lstm CONFIG [--devices 2] [--gradients FILE.npz] [KEY=VALUE]

--gpus 2 uses gpu(0) and gpu(1) instead of cores. On two devices the decoder is split over both, and
the planner chooses everything except KEY=VALUE: fields of runtime.Options, such as micro_batches=2
time_segment=5. With --even the planner chooses nothing: each device has as many layers as the next.
"""

from __future__ import annotations

import argparse
import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import symgraph as sg
from benchmarks.peers.protocol import CLIP, CONFIGS, RATE, VOCAB, Config, batches, serve
from examples import lstm_lm, transformer_lm
from runtime import Cluster, Options, Plan, Session, initialize, make_cluster, plan
from runtime.backends.device.arrays import device
from runtime.planning.mixed_step import predict
from runtime.planning.step import StepPrograms
from runtime.profiling.calibration.pricing import measured_prices
from symgraph.core.types import Array

GRADIENT_RATE = (
    2.0**20
)  # with which the change of a step is the gradient, to the last bits of float32
SEED = 1

Feeds = dict[str, Array]


def model_of(config: Config) -> sg.Model:
    layers, hidden = config.layers, config.hidden
    if config.heads:
        return transformer_lm.build(config.batch, config.steps, VOCAB, layers, hidden, config.heads)
    return lstm_lm.build(config.batch, config.steps, VOCAB, layers, hidden, hidden, residual=False)


def even_groups(config: Config, contexts: tuple[sg.Context, ...]) -> dict[str, sg.Context]:
    """Place the same number of layers on each device, or one more."""
    layers, count = config.layers, len(contexts)
    if layers < count:
        raise SystemExit(f"{layers} layers cannot be split evenly over {count} devices")
    of_layers = {f"layer{i}": contexts[i * count // layers] for i in range(layers)}
    return {"embed": contexts[0], **of_layers, "decode": contexts[-1]}


def make_plan(
    config: Config,
    contexts: tuple[sg.Context, ...],
    overrides: dict[str, Any],
    *,
    even: bool = False,
) -> Plan:
    model = model_of(config)
    options = Options(
        default=contexts[0], devices=contexts, states=model.states, update=True, whole=False
    )
    if even:
        options = replace(options, groups=even_groups(config, contexts))
    elif len(contexts) > 1:
        options = replace(
            options,
            groups={"decode": contexts},
            strategy="auto",
            schedule="auto",
            time_segment="auto",
        )
    options = replace(options, **overrides)
    return plan(model.symbol, model.feeds, options, wrt=None)


def feeds(config: Config) -> list[Feeds]:
    return [
        {"data": data.astype(np.int32), "label": label.astype(np.int32)}
        for data, label in batches(config)
    ]


def first_values(made: Plan, cluster: Cluster, config: Config) -> Any:
    return initialize(made, cluster, sg.init.Uniform(config.hidden**-0.5), SEED)


def save_gradients(path: Path, made: Plan, cluster: Cluster, config: Config) -> None:
    """Save weights, the first batch, its loss and gradients, computed by a step of the plan.

    A step of plain descent at a huge rate leaves minus the gradient times that rate.
    """
    arrays = first_values(made, cluster, config)
    session = Session(made, cluster, arrays, optimizer=sg.optimizer.SGD(GRADIENT_RATE))
    before = {name: array.copy() for name, array in session.parameters().items()}
    first = feeds(config)[0]
    loss = loss_of(session.step(first))
    found = {f"weight {name}": array for name, array in before.items()}
    for name, after in session.parameters().items():
        found[f"gradient {name}"] = (before[name] - after) / np.float32(GRADIENT_RATE)
    data = {name: ids.astype(np.int64) for name, ids in first.items()}
    np.savez(path, loss=np.float64(loss), **data, **found)


def loss_of(figures: dict[str, float]) -> float:
    return figures["nll_nll"] / figures["nll_count"]


def choice_of(made: Plan) -> str:
    """Describe the choice of the planner, and the rank of each weight."""
    chosen, placement = made.choice, made.partition.placement
    weights = (n for n in made.parameters if "weight" in n)
    ranks = " ".join(f"{n}:{placement.rank_of[placement.stage_of[n]]}" for n in weights)
    return (
        f"{chosen.schedule}, M={len(made.sizes)}, time_segment={chosen.time_segment}, "
        f"recompute={chosen.recompute}, weights on ranks {ranks}"
    )


def predicted(made: Plan, contexts: tuple[sg.Context, ...]) -> str:
    """Predict a step from kernels that are measured one by one on its devices."""
    prices = measured_prices(made.network.first, contexts)
    seconds = predict(StepPrograms.of(made), prices).makespan
    return f"predicted {seconds * 1e3:.2f} ms a step"


def held_on_gpus(contexts: tuple[sg.Context, ...]) -> int:
    """Return the bytes that this process has taken on the GPUs, as CuPy's pools know them."""
    pool = device(contexts[0]).xp.get_default_memory_pool()
    return int(pool.total_bytes()) + sum(device(c).set_aside_bytes for c in contexts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", choices=CONFIGS)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=0, metavar="N", help="contexts on GPUs")
    parser.add_argument("--even", action="store_true", help="split the layers evenly")
    parser.add_argument("--predict", action="store_true", help="say how long a step is to take")
    parser.add_argument("--gradients", type=Path, help="write a step's gradients to this file")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    config = CONFIGS[options.config]
    pairs = (text.partition("=") for text in options.overrides)
    kind, count = (sg.gpu, options.gpus) if options.gpus else (sg.cpu, options.devices)
    contexts = tuple(map(kind, range(count)))
    overrides = {key: yaml.safe_load(value) for key, _, value in pairs}
    made = make_plan(config, contexts, overrides, even=options.even)
    choice = [choice_of(made)] if count > 1 else []
    if options.predict:
        choice.append(predicted(made, contexts))
    with make_cluster("threads", count) as cluster:
        if options.gradients is not None:
            save_gradients(options.gradients, made, cluster, config)
            gc.collect()  # or its session counts as peak memory
        session = Session(
            made,
            cluster,
            first_values(made, cluster, config),
            optimizer=sg.optimizer.SGD(RATE),
            clip=CLIP,
        )
        data = feeds(config)
        serve(
            lambda number: loss_of(session.step(data[number])),
            f"symgraph {sg.__version__}, numpy {np.__version__}",
            choice="; ".join(choice),
            memory=(lambda: held_on_gpus(contexts)) if options.gpus else None,
        )


if __name__ == "__main__":
    main()
