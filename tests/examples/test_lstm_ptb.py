"""The model-parallel LSTM of MXNet's examples, with what was wrong in it: small, as configured.

MXNet 1.2.1's example/model-parallel/lstm is the last one with buckets. Each test opens with what it
did; the numbers here come from the configs of examples/lstm_ptb and, to judge them, from the
reference interpreter or from numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.lstm_lm import build
from runtime.backends.device.processor import limit_blas
from runtime.engine.bucket_session import BucketSession
from runtime.profiling.search.candidate import Candidate
from runtime.training.data.table import load_data
from runtime.training.data.text import IGNORED
from runtime.training.job import prepare, training_plan
from runtime.training.trainer import Trainer
from runtime.transports import ThreadCluster
from symgraph.app.config import load_config
from symgraph.app.corpus import EOS
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.frontend.io import DataBatch
from symgraph.frontend.lower import lower
from tests.helpers.profiles import costs

FOLDER = Path(__file__).parents[2] / "examples" / "lstm_ptb"
LENGTHS = (8, 16, 24, 32, 60)
LAYERS, HIDDEN, EMBED, VOCAB, BATCH = 2, 6, 4, 23, 4
SMALL = (
    f"args={{layers: {LAYERS}, hidden: {HIDDEN}, embed: {EMBED}}}",
    f"data.batch_size={BATCH}",
    "data.kind=text",
    f"data.vocab={VOCAB}",
    "train.dtype=float64",
    "train.steps=6",
)
TWO_LAYERS = (
    "group2ctx={embed: cpu(0), layer0: cpu(0), layer1: cpu(1), decode: cpu(1)}",
    "data.batches_per_step=1",
)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """Sentences of all lengths up to 59 words, and the end of each."""
    rng = np.random.default_rng(0)
    lengths = rng.permutation([*range(1, 60)] * 3)
    lines = [" ".join(f"w{i}" for i in rng.integers(0, 30, n)) for n in lengths]
    path = tmp_path_factory.mktemp("ptb") / "text.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@contextmanager
def trainer(text: Path, *overrides: str, config: str = "hand.yaml") -> Iterator[Trainer]:
    made = load_config(str(FOLDER / config), [*SMALL, f"data.path={text}", *overrides])
    with ThreadCluster(len(made.devices)) as cluster, limit_blas(1):
        yield Trainer(prepare(made), cluster, load_data(made))


def of_each_bucket(made: Trainer) -> dict[int, DataBatch]:
    """The first batch of every bucket."""
    found: dict[int, DataBatch] = {}
    for step in range(len(made.source)):
        for batch in made.source.batches(step):
            found.setdefault(batch.bucket_key, batch)
    assert sorted(found) == list(LENGTHS)
    return found


def reference_nll(made: Trainer, data: Any, label: Any) -> float:
    """-log p summed over all words, from the reference interpreter's probabilities."""
    model = build(BATCH, len(data), VOCAB, LAYERS, HIDDEN, EMBED, ignore_label=IGNORED)
    zeros = {n: np.zeros((BATCH, HIDDEN)) for n in model.states}
    values = {**made.training.parameters(), **zeros, "data": data, "label": label}
    graph = lower(
        model.symbol,
        {n: a.shape for n, a in values.items()},
        {n: str(a.dtype) for n, a in values.items()},
    )
    probabilities = evaluate(graph, values, Env())[0]
    words = label.reshape(-1)
    real = np.flatnonzero(words != IGNORED)
    return float(-np.log(probabilities[real, words[real]]).sum())


def gradients_of(session: Any) -> dict[str, Any]:
    return {n: g.copy() for w in session.workers.values() for n, g in w.grads.items()}


@pytest.mark.slow
def test_a_bucket_is_unrolled_to_its_own_length(text):
    """Every bucket was unrolled to the default one's 60 steps: a sentence of 8 words cost as much
    as one of 60, and the stale words in the other 52 steps entered the loss."""
    with trainer(text, *TWO_LAYERS) as made:
        for length, batch in of_each_bucket(made).items():
            figures = made.training.step_batches([batch])
            network = made.training.workers[0].plan.network.first
            cells = [n for n in network if n.op == "_lstm_gates" and n.origin is None]
            assert len(cells) == LAYERS * length
            assert figures["nll_count"] == (batch.label[0] != IGNORED).sum()


@pytest.mark.slow
def test_all_buckets_are_one_model(text):
    """Each bucket allocated and initialised parameters of its own: five models, each of which had
    learnt from a fifth of the text."""
    with trainer(text, *TWO_LAYERS) as made:
        batches = of_each_bucket(made)
        before = reference_nll(made, *batches[60].data, *batches[60].label)
        for length in LENGTHS:
            made.training.step_batches([batches[length]])
        after = reference_nll(made, *batches[60].data, *batches[60].label)
        assert after != before
        assert made.training.step_batches([batches[60]])["nll_nll"] == pytest.approx(after)
        held = {id(a) for arrays in made.training.arrays.values() for a in arrays.values()}
        assert isinstance(made.training, BucketSession)
        for workers in made.training._bound.values():
            assert {id(a) for w in workers.values() for a in w.arrays.values()} == held


def test_the_loss_is_that_of_all_steps(text):
    """calc_nll returned inside its loop over time: the perplexity was that of the first words."""
    with trainer(text, *TWO_LAYERS) as made:
        batch = of_each_bucket(made)[24]
        (data,), (label,) = batch.data, batch.label
        whole, first = reference_nll(made, data, label), reference_nll(made, data[:1], label[:1])
        assert made.training.step_batches([batch])["nll_nll"] == pytest.approx(whole, rel=1e-12)
        assert first < whole / 10


def test_neither_the_first_word_nor_pads_are_learnt(text):
    """The last word's label was the first word (an index modulo the length), and pads, with id 0,
    were words like others: trained, counted, and fed."""
    with trainer(text, *TWO_LAYERS) as made:
        for batch in of_each_bucket(made).values():
            (data,), (label,) = batch.data, batch.label
            for words, answers in zip(data.T, label.T, strict=True):
                count = int((answers != IGNORED).sum())
                np.testing.assert_array_equal(answers[:count], words[1 : count + 1])
                assert (answers[count:] == IGNORED).all()
        batch = of_each_bucket(made)[16]
        (data,), (label,) = batch.data, batch.label
        pads = np.vstack([np.zeros((1, BATCH), bool), label[:-1] == IGNORED])
        other = np.where(pads, np.random.default_rng(1).integers(0, VOCAB, data.shape), data)
        assert (other != data).any()
        weights = {n: a.copy() for n, a in made.training.parameters().items()}
        found = []
        for given in (data, other.astype(np.int32)):
            for name, array in made.training.parameters().items():
                array[:] = weights[name]
            changed = DataBatch(
                [given],
                [label],
                bucket_key=16,
                provide_data=batch.provide_data,
                provide_label=batch.provide_label,
            )
            figures = made.training.step_batches([changed])
            found.append((figures, gradients_of(made.training)))
        (figures, grads), (others, other_grads) = found
        assert figures == others
        for name, grad in grads.items():
            assert np.abs(grad).max() > 0
            np.testing.assert_allclose(other_grads[name], grad, rtol=1e-12, atol=1e-15)
        assert not grads["embed_weight"][EOS].any()  # what pads are fed as; no sentence reads on


@pytest.mark.slow
def test_perplexity_is_a_words(text):
    """The sum over steps was divided by the number of sentences: exp of a whole sentence's NLL."""
    with trainer(text, *TWO_LAYERS) as made:
        for array in made.training.parameters().values():
            array[:] = 0
        assert made.evaluate()["perplexity"] == pytest.approx(VOCAB, rel=1e-12)
        batch = of_each_bucket(made)[60]
        figures = made.training.step_batches([batch])
        assert figures["nll_nll"] / figures["nll_count"] == pytest.approx(np.log(VOCAB), rel=1e-12)


@pytest.mark.slow
def test_states_go_on_along_a_stream_and_not_between_sentences(text):
    """The next batch was to begin with last_states, which was always None. On a stream of text it
    now does; a batch of sentences begins with zeros, because others were there before it."""
    with trainer(text, *TWO_LAYERS, "data.buckets=null", "data.sequence_length=7") as made:
        batches = [made.source.batches(step)[0] for step in range(2)]
        data, label = (np.vstack([b.feeds[n] for b in batches]) for n in ("data", "label"))
        assert scored(made, batches) == pytest.approx(reference_nll(made, data, label), rel=1e-12)
        apart = sum(reference_nll(made, *b.data, *b.label) for b in batches)
        assert scored(made, batches) != pytest.approx(apart, rel=1e-6)
    with trainer(text, *TWO_LAYERS) as made:
        batches = [of_each_bucket(made)[length] for length in (16, 8, 60)]
        apart = sum(reference_nll(made, *b.data, *b.label) for b in batches)
        assert scored(made, batches) == pytest.approx(apart, rel=1e-12)


def scored(made: Trainer, batches: Sequence[DataBatch]) -> float:
    """The summed negative log-likelihood of consecutive batches."""
    made.evaluation.reset_states()
    for batch in batches:
        made.evaluation.step_batches([batch])
    return made.evaluation.collect()["nll_nll"]


def test_the_plan_by_hand_is_the_originals():
    config = load_config(str(FOLDER / "hand.yaml"))
    layers, devices = config.args["layers"], config.devices
    want = {"embed": devices[0], "decode": devices[-1]}
    want |= {f"layer{i}": devices[i * len(devices) // layers] for i in range(layers)}
    assert dict(config.group2ctx) == want
    assert config.data.buckets == LENGTHS
    other = load_config(str(FOLDER / "bucketed.yaml"))
    assert (other.args, other.data, other.train) == (config.args, config.data, config.train)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*longer than the largest bucket")
def test_the_planners_run_has_the_bits_of_the_run_by_hand(text):
    alone = ("devices=[cpu(0)]", "group2ctx={}")
    found = []
    for config, more in (
        ("hand.yaml", TWO_LAYERS[:1]),
        ("bucketed.yaml", ()),
        ("hand.yaml", alone),
    ):
        with trainer(text, "data.buckets=[8, 16]", *more, config=config) as made:
            summary = made.fit()
            found.append((summary["loss"], summary["tokens"], made.training.parameters()))
    for loss, tokens, weights in found[1:]:
        assert (loss, tokens) == found[0][:2]
        assert all(array.tobytes() == found[0][2][n].tobytes() for n, array in weights.items())


@pytest.mark.slow
def test_the_planner_is_predicted_to_beat_the_partition_by_hand(tmp_path):
    """There: as many layers on each device, and the decoder, which is worth three, on the last."""
    file = str(FOLDER / "partitions.yaml")
    short = ["data.buckets=[8]", f"partition.costs={costs(tmp_path)}"]
    steps = {
        name: Candidate.of(made, (), training_plan(made), (((8, 8), 1.0),)).seconds
        for name, more in load_config(file, ()).candidates.items()
        for made in [load_config(file, [*short, *more])]
    }
    assert steps["by hand"] > 1.15 * steps["the planner's"]
