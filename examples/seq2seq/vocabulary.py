"""A vocabulary: the words and characters of one language, with their numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

PAD, BEGIN, END, UNKNOWN = range(4)
PIECES = re.compile(r"\s?[^\W\d]+|.", re.DOTALL)  # a word with the space before it, or a character


class Vocabulary:
    """Tokens of texts: words that occur in enough texts, and characters, which spell other words.

    Digits are always characters, so every number can be written.

    least: the number of texts a word must occur in to be a token.
    """

    def __init__(self, texts: Sequence[str], least: int = 1) -> None:
        counts = Counter(word for text in texts for word in set(PIECES.findall(text)))
        self._words = {word for word, count in counts.items() if count >= least}
        known = self._words.union(*texts)
        self.tokens = ("", "", "", "\N{REPLACEMENT CHARACTER}", *sorted(known))
        self._ids = {token: i for i, token in enumerate(self.tokens) if i > UNKNOWN}

    def __len__(self) -> int:
        return len(self.tokens)

    def split(self, text: str) -> list[str]:
        """Split a text into tokens; joined, they are the text again."""
        tokens: list[str] = []
        for word in PIECES.findall(text):
            tokens += [word] if word in self._words else word
        return tokens

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text's tokens; UNKNOWN for a character outside the vocabulary."""
        return [self._ids.get(token, UNKNOWN) for token in self.split(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of the tokens before the first END."""
        tokens = []
        for i in ids:
            if i == END:
                break
            tokens.append(self.tokens[i])
        return "".join(tokens)
