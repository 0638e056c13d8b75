"""A vocabulary: the words and characters of one language, and their numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

PAD, BEGIN, END, UNKNOWN = range(4)
PIECES = re.compile(r"\s?[^\W\d]+|.", re.DOTALL)  # a word with the space before it, or a character


class Vocabulary:
    """Tokens of texts: words that enough of them have, and characters, which spell the others.

    Digits are always characters, so that every number can be written.
    """

    def __init__(self, texts: Sequence[str], least: int = 1) -> None:
        """least: how many texts must have a word for it to be a token."""
        counts = Counter(word for text in texts for word in set(PIECES.findall(text)))
        self._words = {word for word, count in counts.items() if count >= least}
        known = self._words.union(*texts)
        self.tokens = ("", "", "", "\N{REPLACEMENT CHARACTER}", *sorted(known))
        self._ids = {token: i for i, token in enumerate(self.tokens) if i > UNKNOWN}

    def __len__(self) -> int:
        return len(self.tokens)

    def split(self, text: str) -> list[str]:
        """The tokens of a text; joined, they are the text."""
        found: list[str] = []
        for word in PIECES.findall(text):
            found += [word] if word in self._words else word
        return found

    def encode(self, text: str) -> list[int]:
        """The numbers of its tokens; UNKNOWN for a character that was in no text."""
        return [self._ids.get(token, UNKNOWN) for token in self.split(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens before the first END."""
        found = []
        for i in ids:
            if i == END:
                break
            found.append(self.tokens[i])
        return "".join(found)
