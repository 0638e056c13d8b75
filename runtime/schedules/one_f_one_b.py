"""The 1F1B schedule: one forward, one backward (PipeDream-Flush)."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.instructions import Run


def one_f_one_b(rank_of: Sequence[int], mbs: int) -> list[list[Run]]:
    """A stage holds no more micro-batches than it has stages to its end, itself included.

        rank 0   F0 F1 F2 B0 F3 B1 B2 B3
        rank 1   F0 F1 B0 F2 B1 F3 B2 B3
        rank 2   F0 B0 F1 B1 F2 B2 F3 B3

    The lists are what ranks do that take the oldest backward that is ready, or else the oldest
    forward of their last stage within that limit, when a forward takes one tick and a backward
    two. With one stage a rank that is the picture above; several stages a rank work the same way.
    """
    stages = len(rank_of)
    ranks: list[list[Run]] = [[] for _ in range(max(rank_of) + 1)]
    own = [[s for s in range(stages) if rank_of[s] == r] for r in range(len(ranks))]
    done = {"F": [0] * stages, "B": [0] * stages}  # micro-batches finished, by stage
    begun = {"F": [0] * stages, "B": [0] * stages}
    busy: dict[int, tuple[int, Run]] = {}  # rank -> tick it is free again, what it runs
    tick = 0
    while min(done["B"]) < mbs:
        for rank, (end, run) in list(busy.items()):
            if end == tick:
                done[run.phase][run.stage] += 1
                del busy[rank]
        for rank in range(len(ranks)):
            if rank not in busy:
                chosen = _choose(own[rank], stages, mbs, begun, done)
                if chosen is not None:
                    begun[chosen.phase][chosen.stage] += 1
                    ranks[rank].append(chosen)
                    busy[rank] = (tick + (2 if chosen.phase == "B" else 1), chosen)
        tick += 1
    return ranks


def _choose(
    own: list[int], stages: int, mbs: int, begun: dict[str, list[int]], done: dict[str, list[int]]
) -> Run | None:
    """What a free rank does next, if anything is ready."""
    for stage in own:
        mb = begun["B"][stage]
        behind = done["F" if stage == stages - 1 else "B"]
        if mb < behind[min(stage + 1, stages - 1)] and mb < done["F"][stage]:
            return Run(stage, "B", mb)
    for stage in reversed(own):
        mb = begun["F"][stage]
        ready = mb < mbs and (stage == 0 or mb < done["F"][stage - 1])
        if ready and mb - done["B"][stage] < stages - stage:
            return Run(stage, "F", mb)
    return None
