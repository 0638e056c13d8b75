"""Golden schedules: small cases as text, in tests/runtime/schedule/golden, one line per rank.

`python -m tests.runtime.schedule.write_golden` writes them anew; a change is to be read as a diff.
"""

from __future__ import annotations

from pathlib import Path

from runtime.schedule.generators.forward import forward_only
from runtime.schedule.generators.gpipe import gpipe
from runtime.schedule.generators.segments import expand
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.program import Schedule

FOLDER = Path(__file__).parent / "golden"
LOOP, V, UNBALANCED = [0, 1, 0, 1], [0, 1, 1, 0], [0, 0, 1, 1, 0]

# file name -> schedule, stage -> rank, micro-batches
CASES = {
    "gpipe": ("gpipe", [0, 1, 2], 3),
    "gpipe-unbalanced": ("gpipe", UNBALANCED, 2),
    "gpipe-2bp": ("gpipe-2bp", [0, 1, 2], 3),
    "gpipe-2bp-unbalanced": ("gpipe-2bp", UNBALANCED, 2),
    "1f1b": ("1f1b", [0, 1, 2], 4),
    "1f1b-few": ("1f1b", [0, 1, 2, 3], 2),
    "1f1b-unbalanced": ("1f1b", UNBALANCED, 3),
    "interleaved": ("interleaved", LOOP, 4),
    "interleaved-ragged": ("interleaved", LOOP, 5),
    "interleaved-unbalanced": ("interleaved", UNBALANCED, 3),
    "looped-bfs": ("looped-bfs", LOOP, 3),
    "zb-h1": ("zb-h1", [0, 1, 2], 4),
    "zb-h1-loop": ("zb-h1", LOOP, 3),
    "zb-h2": ("zb-h2", [0, 1, 2], 5),
    "zb-v": ("zb-v", V, 3),
    "zb-v-few": ("zb-v", V, 2),
    "dualpipe-v": ("dualpipe-v", [0, 1, 2, 3, 3, 2, 1, 0], 10),  # PyTorch's dualpipev_4rank_10mb
    "wavefront": ("wavefront", [0, 1, 0], 2),
}


def golden() -> dict[str, str]:
    """File name -> text of all cases."""
    lists = {name: SCHEDULES[schedule](ranks, m) for name, (schedule, ranks, m) in CASES.items()}
    lists["gpipe-forward"] = gpipe([0, 1, 2], 3, order="forward")
    lists["forward"] = forward_only([0, 1], 3)
    lists["wavefront-segments"] = expand(SCHEDULES["wavefront"]([0, 1], 2), 3)
    lists["zb-h1-segments"] = expand(SCHEDULES["zb-h1"]([0, 1], 2), 2)
    return {name: f"{Schedule.of(programs)}\n" for name, programs in lists.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in golden().items():
        (FOLDER / f"{name}.txt").write_text(text)
