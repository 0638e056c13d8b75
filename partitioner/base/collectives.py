"""Collectives: which ranks exchange how many bytes, and in which order."""

from __future__ import annotations

from typing import NamedTuple

Group = tuple[str, tuple[int, ...]]  # a lane and its ranks


class CollectiveLayout(NamedTuple):
    """The bytes that some ranks give each other in one collective."""

    #: "bcast", "scatter", "gather", "allgather" or "alltoall".
    kind: str
    #: The ranks that take part, in rising order.
    ranks: tuple[int, ...]
    #: `sizes[i][j]`: bytes from the i-th rank to the j-th; a bcast or allgather has equal rows.
    sizes: tuple[tuple[int, ...], ...]
    #: Collectives of one lane and the same ranks start in one common order.
    lane: str = ""

    @property
    def group(self) -> Group:
        """The group that the ranks must have joined."""
        return self.lane, self.ranks

    @property
    def shared(self) -> bool:
        """Whether a rank gives the same bytes to all others."""
        return self.kind in ("bcast", "allgather")

    def given(self, i: int) -> int:
        """Count the bytes that the i-th rank gives: one block for all, or one block for each."""
        return max(self.sizes[i]) if self.shared else sum(self.sizes[i])

    def to(self, i: int, j: int) -> int:
        """Return the offset of the j-th rank's block in the buffer that the i-th rank gives."""
        return 0 if self.shared else sum(self.sizes[i][:j])

    def column(self, j: int) -> list[int]:
        """List the sizes of the blocks that the j-th rank gets; an allgather includes its own."""
        if self.kind == "allgather":
            return [self.given(i) for i in range(len(self.ranks))]
        return [row[j] for row in self.sizes]
