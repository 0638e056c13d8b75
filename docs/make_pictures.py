"""The pictures of profiling.md and what it quotes, made again by the commands that the page shows.

    python docs/make_pictures.py            from the root of the repository; a few minutes

It wants the extra `report`, and Debian's chromium and chromium-driver for the screenshots.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
PAGE = ROOT / "docs" / "profiling.md"
WINNER = PICTURES / "winner.yaml"
TEXT = ":\n\n```text\n"  # what follows the words that end before something quoted
GAINED = "begin with what the partition gains over it" + TEXT
FOUND = "([pictures/winner.yaml](pictures/winner.yaml))" + TEXT
COMMANDS = {
    "profile": ["examples/lstm_lm.yaml", "--profile"],
    "compare": ["examples/partitions.yaml", "--compare"],
}
VIEWS = (  # folder, file, width, height, dark
    ("profile", "report.png", 1280, 980, False),
    ("profile", "report-phone-dark.png", 390, 980, True),
    ("compare", "compare.png", 1280, 980, False),
)


def main() -> None:
    """Run the commands, and take pictures of the pages they write."""
    sys.path.insert(0, str(ROOT))
    from tests.helpers.browser import browser

    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        for name, arguments in COMMANDS.items():
            command = [sys.executable, "-m", "symgraph.run", *arguments, "--report"]
            done = subprocess.run(
                [*command, f"{folder}/{name}"], cwd=ROOT, check=True, stdout=subprocess.PIPE
            )
            (PICTURES / f"{name}.txt").write_bytes(done.stdout)
        search = [sys.executable, "-m", "symgraph.run", "examples/lstm_lm.yaml", "--search"]
        for old in PICTURES.glob(f"{WINNER.stem}.*"):
            old.unlink()  # not each search writes an order
        subprocess.run([*search, "--winner", str(WINNER.relative_to(ROOT))], cwd=ROOT, check=True)
        gained = (PICTURES / "profile.txt").read_text().split("\n\n")[1]
        quote(GAINED, gained.splitlines())
        quote(FOUND, takewhile(lambda line: line[:1] == "#", WINNER.read_text().splitlines()))
        for picture in ("timeline.png", "memory.png"):
            shutil.copy(Path(folder, "profile", picture), PICTURES / picture)
        with browser() as window:
            for name, file, width, height, dark in VIEWS:
                window.view(width, height, dark=dark)
                window.open(Path(folder, name, "index.html"))
                window.screenshot(PICTURES / file, whole=False)


def quote(words: str, lines: Iterable[str]) -> None:
    """Put lines into the page, instead of those that follow some words there."""
    head, rest = PAGE.read_text().split(words)
    tail = rest.partition("```")[2]
    PAGE.write_text("".join((head, words, "\n".join(lines), "\n```", tail)))


if __name__ == "__main__":
    main()
