"""The seed that `mx.random.seed` sets: the key of random numbers of whatever has no other seed.

Random numbers are functions of a key and a counter (rand.py), so nothing here is drawn from. What
draws counts its own passes or calls, and begins anew when the seed is set.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Seeding:
    """The seed, and how often it was set."""

    seed: int = 0
    #: Calls of `set`; who counts passes begins at 0 again when it changes.
    generation: int = 0
    #: Random operators that were evaluated on arrays since.
    draws: int = 0

    def set(self, seed: int) -> None:
        """Begin anew with a seed."""
        self.seed, self.draws = int(seed), 0
        self.generation += 1

    def next_draw(self) -> int:
        """Return the number of the next evaluation, from 0."""
        self.draws += 1
        return self.draws - 1


SEEDING = Seeding()
