"""A translator: greedy decoding with the parameters of a training session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from examples.seq2seq.batches import Key, sources
from examples.seq2seq.network import WRITER, Sizes, greedy
from examples.seq2seq.vocabulary import BEGIN, Vocabulary
from runtime import Buckets, BucketSession, Session
from symgraph.io import DataDesc

SIZE = 256  # texts translated at once


class Translator:
    """Translates texts, into at most as many tokens as the largest bucket has.

    The whole loop over time is in the graph: each step's word is the next step's input. A batch of
    texts is therefore one step of a session. A source uses the shortest bucket of training that
    holds it, because padding before a source has some effect.

    keys: the buckets of training; the last one holds all pairs.
    """

    def __init__(
        self,
        training: BucketSession,
        keys: Sequence[Key],
        sizes: Sizes,
        vocabularies: tuple[Vocabulary, Vocabulary],
    ) -> None:
        self.source, self.target = vocabularies
        self.writes = WRITER in training.cluster.ranks
        longest = keys[-1][1]
        options = replace(training.plan.options, update=False)
        buckets = Buckets(
            partial(greedy, sizes=sizes), keys[-1], _provide(keys[-1]), options, train=False
        )
        self.sessions: dict[int, Session] = {}
        for steps in sorted({source for source, _ in keys}):
            plan = buckets.plan((steps, longest), _provide((steps, longest)))
            self.sessions[steps] = Session(
                plan,
                training.cluster,
                training.arrays,
                resources=training.resources,
                keep_outputs=True,
            )

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """Return the translations on the process of the writing rank.

        All processes must call it.
        """
        encoded = [self.source.encode(text)[::-1] for text in texts]
        members: dict[int, list[int]] = defaultdict(list)
        for number, words in enumerate(encoded):
            members[min(n for n in self.sessions if n >= len(words))].append(number)
        translations = [""] * len(texts)
        for steps, numbers in members.items():
            for at in range(0, len(numbers), SIZE):
                part = numbers[at : at + SIZE]
                written = self._write(steps, [encoded[i] for i in part])
                for number, text in zip(part, written, strict=True):
                    translations[number] = text
        return translations

    def _write(self, steps: int, rows: Sequence[Sequence[int]]) -> list[str]:
        """Translate up to SIZE sources of one bucket; return empty texts on the other process."""
        session = self.sessions[steps]
        feeds = {"source": sources(rows, steps, SIZE), "begin": np.full(SIZE, BEGIN, np.int32)}
        session.step(feeds)
        if not self.writes:
            return [""] * len(rows)
        (words,) = session.outputs()
        return [self.target.decode(column) for column in words.T[: len(rows)]]


def _provide(key: Key) -> list[DataDesc]:
    return [
        DataDesc("source", (key[0], SIZE), "int32", "TN"),
        DataDesc("begin", (SIZE,), "int32", "N"),
    ]
