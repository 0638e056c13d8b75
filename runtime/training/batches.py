"""The batches of a run: those of one long stream of words, or of sentences in buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from symgraph.app.config import DataConfig
from symgraph.app.corpus import EOS, Ids, TimeMajorBatches, sentences
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.rnn.io import BucketSentenceIter

IGNORED = -1  # the label of words that do not count
LAYOUT = "TN"


class Source(Protocol):
    """The batches of steps, numbered over epochs."""

    def __len__(self) -> int:
        """Return the number of steps per epoch."""
        ...

    def batches(self, step: int) -> Sequence[DataBatch]:
        """Return the batches of one step."""
        ...

    def tokens(self, step: int) -> int:
        """Return the number of labels that count in one step."""
        ...


class Stream:
    """Consecutive batches of one stream of words: states are carried from each to the next."""

    def __init__(self, ids: Ids, data: DataConfig) -> None:
        assert data.sequence_length is not None
        self._batches = TimeMajorBatches(ids, data.batch_size, data.sequence_length)
        self._tokens = data.batch_size * data.sequence_length

    def __len__(self) -> int:
        return len(self._batches)

    def batches(self, step: int) -> list[DataBatch]:
        data, label = self._batches.batch(step % len(self))
        provide = descriptions(*data.shape)
        return [DataBatch([data], [label], provide_data=provide[0], provide_label=provide[1])]

    def tokens(self, step: int) -> int:
        return self._tokens


class Sentences:
    """Sentences in buckets, `batches_per_step` batches per step.

    The last step of an epoch may take its last batches from the next one.
    """

    def __init__(self, ids: Ids, data: DataConfig, seed: int) -> None:
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

    def batches(self, step: int) -> list[DataBatch]:
        first = step * self._per_step
        return [self._batches.batch(n) for n in range(first, first + self._per_step)]

    def tokens(self, step: int) -> int:
        return sum(int((b.label[0] != IGNORED).sum()) for b in self.batches(step))


def descriptions(steps: int, batch: int) -> tuple[list[DataDesc], list[DataDesc]]:
    """Describe the data and labels of that many time steps and sequences."""
    data, label = (DataDesc(n, (steps, batch), "int32", LAYOUT) for n in ("data", "label"))
    return [data], [label]


def source(ids: Ids, data: DataConfig, seed: int) -> Source:
    """Make the batches that a config's `data:` section asks for."""
    return Stream(ids, data) if data.buckets is None else Sentences(ids, data, seed)
