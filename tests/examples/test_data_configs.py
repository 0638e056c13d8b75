"""The configs for images, tables and sequences: each trains by one command, to the same bits."""

from __future__ import annotations

import pytest

from runtime.backends.device.processor import limit_blas
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import load_config

SMALL = {
    "vgg": (
        "args={filters: 2}",
        "train.steps=4",
        "train.epochs=null",
        "partition.replicas={block1: 2, block2: 2, block3: 2, block4: 2, head: 2}",
    ),
    "table": (
        "train.steps=8",
        "train.epochs=null",
        "devices=[cpu(0), cpu(1)]",
        "group2ctx={first: cpu(0), second: cpu(1)}",
    ),
    "tagger": ("args={hidden: 8, embed: 8}", "train.steps=4", "evaluate.every=null"),
}
ONE = ("devices=[cpu(0)]", "group2ctx={}")


def summary(name: str, *overrides: str) -> dict[str, object]:
    config = load_config(f"examples/{name}.yaml", (*SMALL[name], *overrides))
    with limit_blas(1), make_cluster("threads", len(config.devices)) as cluster:
        return Trainer(prepare(config), cluster, load_data(config)).fit()


@pytest.mark.parametrize(
    "name", ["table", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vgg", "tagger"))]
)
def test_a_config_trains_to_the_same_bits_on_one_device(name):
    pytest.importorskip("sklearn", reason="needs the extra `examples`")
    two, one = summary(name), summary(name, *ONE)
    assert two["held_out"] == one["held_out"]
    assert two["train_loss"] == one["train_loss"]
    assert two["samples"] == two["steps"] * load_config(f"examples/{name}.yaml").data.batch_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "metric", "least"), [("vgg", "accuracy", 0.95), ("table", "accuracy", 0.9)]
)
def test_a_config_learns(name, metric, least):
    pytest.importorskip("sklearn", reason="needs the extra `examples`")
    config = load_config(f"examples/{name}.yaml")
    with make_cluster("threads", len(config.devices)) as cluster:
        found = Trainer(prepare(config), cluster, load_data(config)).fit()
    assert found["held_out"][metric] >= least
