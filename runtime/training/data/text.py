"""The batches of a run: those of one long stream of words, or of sentences in buckets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runtime.training.data.base import Inputs, Part, Source
from runtime.training.data.timed import TimedSentences
from symgraph.app.config import Config
from symgraph.app.corpus import (
    EOS,
    Corpus,
    Ids,
    TimeMajorBatches,
    sentences,
    stdlib_text,
    text,
)
from symgraph.app.data_config import (
    StdlibTextData,
    TextConfig,
    TextData,
    is_by_time,
    rows_of,
)
from symgraph.core.errors import ConfigError
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.frontend.model import Model
from symgraph.rnn.io import BucketSentenceIter

IGNORED = -1  # the label of words that do not count
LAYOUT = "TN"


class Stream:
    """Consecutive batches of one stream of words: states are carried from each to the next."""

    def __init__(self, ids: Ids, data: TextConfig) -> None:
        assert data.sequence_length is not None
        self._batches = TimeMajorBatches(ids, data.batch_size, data.sequence_length)
        self._tokens = data.batch_size * data.sequence_length

    def __len__(self) -> int:
        return len(self._batches)

    def begins_epoch(self, step: int) -> bool:
        return step % len(self) == 0

    def batches(self, step: int) -> list[DataBatch]:
        data, label = self._batches.batch(step % len(self))
        provide = descriptions(*data.shape)
        return [DataBatch([data], [label], provide_data=provide[0], provide_label=provide[1])]

    def count(self, step: int) -> int:
        return self._tokens


class Sentences:
    """Sentences in buckets, `batches_per_step` batches per step.

    The last step of an epoch may take its last batches from the next one.
    """

    def __init__(self, ids: Ids, data: TextConfig, seed: int) -> None:
        self._batches = BucketSentenceIter(
            sentences(ids),
            data.batch_size,
            data.buckets,
            IGNORED,
            "data",
            "label",
            layout=LAYOUT,
            pad_tail=True,
            seed=seed,
            data_pad=EOS,
        )
        self._per_step = data.batches_per_step

    def __len__(self) -> int:
        return max(1, len(self._batches) // self._per_step)

    def begins_epoch(self, step: int) -> bool:
        return step % len(self) == 0

    def batches(self, step: int) -> list[DataBatch]:
        first = step * self._per_step
        return [self._batches.batch(n) for n in range(first, first + self._per_step)]

    def count(self, step: int) -> int:
        return sum(int((b.label[0] != IGNORED).sum()) for b in self.batches(step))


def descriptions(steps: int, batch: int) -> tuple[list[DataDesc], list[DataDesc]]:
    """Describe the data and labels of that many time steps and sequences."""
    data, label = (DataDesc(n, (steps, batch), "int32", LAYOUT) for n in ("data", "label"))
    return [data], [label]


@dataclass(frozen=True, eq=False)
class TextDataset:
    """A text, for language models."""

    corpus: Corpus
    unit: str = "tokens"

    @property
    def name(self) -> str:
        return self.corpus.name

    @property
    def digest(self) -> str:
        return self.corpus.digest

    @property
    def identity(self) -> str:
        return self.corpus.vocabulary_digest

    def about(self) -> str:
        corpus = self.corpus
        return (
            f"{corpus.name}: {len(corpus.train):,} training and {len(corpus.valid):,} held-out "
            f"tokens; perplexity of word frequencies alone {corpus.unigram_perplexity():.0f}"
        )

    def in_order(self, inputs: Inputs) -> Iterator[DataBatch]:
        raise ConfigError(
            "data.kind: a text is cut into pieces of a stream or sentences in buckets, which are "
            "no samples in an order; predict on `arrays`, or on batches from a `python` function"
        )

    def source(self, part: Part, config: Config, model: Model | None) -> Source:
        data, seed = config.data, config.train.seed
        assert isinstance(data, TextConfig), "its section"
        ids = self.corpus.train
        if part == "held-out":
            ids = self.corpus.valid
            # Without backward, several batches per step gain nothing.
            data = data.model_copy(update={"batches_per_step": 1})
        try:
            if part == "training" and is_by_time(data):
                return _timed(ids, data, config)
            return Stream(ids, data) if data.buckets is None else Sentences(ids, data, seed)
        except ConfigError as error:
            raise ConfigError(f"the {part} text: {error}") from None


def _timed(ids: Ids, data: TextConfig, config: Config) -> TimedSentences:
    parts = config.pipeline.micro_batches
    assert data.buckets is not None
    assert isinstance(parts, int)
    return TimedSentences(
        sentences(ids),
        data.batch_size,
        max(data.buckets),
        rows_of(data, parts),
        data.lengths,
        IGNORED,
        "data",
        "label",
        layout=LAYOUT,
        batches_per_step=data.batches_per_step,
        window=data.window,
        seed=config.train.seed,
        data_pad=EOS,
    )


def load_text(data: TextData) -> TextDataset:
    """Read a text file."""
    return _checked(text(data.path, data.valid_path, data.vocab))


def load_stdlib_text(data: StdlibTextData) -> TextDataset:
    """Read the source code of Python's standard library."""
    return _checked(stdlib_text(data.vocab))


def _checked(corpus: Corpus) -> TextDataset:
    for part, ids in (("training", corpus.train), ("held-out", corpus.valid)):
        if not len(ids):
            raise ConfigError(f"the {part} part of {corpus.name} has no words")
    return TextDataset(corpus)
