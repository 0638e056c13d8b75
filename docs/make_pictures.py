"""The pictures of the documentation and what it quotes, made again by the commands that it shows.

    python docs/make_pictures.py            from the root of the repository; some minutes
    python docs/make_pictures.py search     one of its commands only
    python docs/make_pictures.py terminal   the terminal, from what the commands printed last
    python docs/make_pictures.py tour       the outputs of the notebook examples/tour.ipynb
    python docs/make_pictures.py concepts   the drawings of concepts.md, which no measurement enters

It wants the extra `report`, and Debian's chromium and chromium-driver for the screenshots.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from html import escape
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
PAGE = ROOT / "docs" / "profiling.md"
TOUR = ROOT / "examples" / "tour.ipynb"
WINNER = PICTURES / "winner.yaml"
TEXT = ":\n\n```text\n"  # what follows the words that end before something quoted
GAINED = "begin with what the partition gains over it" + TEXT
FOUND = "([pictures/winner.yaml](pictures/winner.yaml))" + TEXT
COMMANDS = {
    "profile": "symgraph profile examples/lstm_lm.yaml",
    "compare": "symgraph compare examples/partitions.yaml",
    "search": "symgraph search examples/lstm_lm.yaml",
}
VIEWS = {  # command -> file, width, height, dark
    "profile": (
        ("report.png", 1280, 1000, False),
        ("report-dark.png", 1280, 1000, True),
        ("report-phone.png", 390, 1000, False),
        ("report-phone-dark.png", 390, 1000, True),
    ),
    "compare": (("compare.png", 1280, 1000, False), ("compare-phone-dark.png", 390, 1000, True)),
}
COLUMNS = 100  # of the terminal


def main(names: Sequence[str]) -> None:
    """Run the commands, take pictures of the pages they write, and draw the terminal."""
    sys.path.insert(0, str(ROOT))
    PICTURES.mkdir(exist_ok=True)
    for name in names or COMMANDS:
        if name == "tour":
            from tests.helpers.notebook import execute, write

            write(execute(TOUR), TOUR)
            continue
        if name == "concepts":
            for part, drawing in concepts().items():
                (PICTURES / f"{part}.svg").write_text(drawing, encoding="utf-8")
            continue
        if name in COMMANDS:
            with TemporaryDirectory() as folder:
                run(name, Path(folder))
    (PICTURES / "terminal.svg").write_text(terminal(), encoding="utf-8")


def run(name: str, folder: Path) -> None:
    """Run a command; keep what it prints, the pictures of its report, and what the page quotes."""
    if name == "search":
        for old in PICTURES.glob(f"{WINNER.stem}.*"):
            old.unlink()  # not each search writes an order
        more = ["--winner", str(WINNER.relative_to(ROOT))]
    else:
        more = ["--report", str(folder)]
    words = [sys.executable, "-m", *COMMANDS[name].split(), *more]
    environ = {**os.environ, "COLUMNS": str(COLUMNS)}
    done = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, env=environ)
    (PICTURES / f"{name}.txt").write_bytes(done.stdout)
    if name == "search":
        quote(FOUND, takewhile(lambda line: line[:1] == "#", WINNER.read_text().splitlines()))
    elif name == "profile":
        quote(GAINED, (PICTURES / "profile.txt").read_text().split("\n\n")[1].splitlines())
        for picture in ("timeline.png", "memory.png"):
            shutil.copy(folder / picture, PICTURES / picture)
    photograph(folder / "index.html", name)


def photograph(page: Path, name: str) -> None:
    """Take the pictures of a page."""
    from tests.helpers.browser import browser

    if name in VIEWS:
        with browser() as window:
            for file, width, height, dark in VIEWS[name]:
                window.view(width, height, dark=dark)
                window.open(page)
                window.screenshot(PICTURES / file, whole=False)


def quote(words: str, lines: Iterable[str]) -> None:
    """Put lines into the page, instead of those that follow some words there."""
    head, rest = PAGE.read_text().split(words)
    tail = rest.partition("```")[2]
    PAGE.write_text("".join((head, words, "\n".join(lines), "\n```", tail)))


# -- concepts ------------------------------------------------------------------------------------


def concepts() -> dict[str, str]:
    """Draw a small network in its forms: part -> SVG. Times are those of an imagined machine."""
    import runtime
    import symgraph as sg
    from partitioner.costs.cost import Speed
    from partitioner.costs.machine import Machine
    from runtime.planning.costs.prices import CostModel

    with sg.AttrScope(ctx_group="lower"):
        x = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=512, name="fc1")
        x = sg.sym.Activation(x, act_type="relu", name="relu1")
    with sg.AttrScope(ctx_group="upper"):
        x = sg.sym.FullyConnected(x, num_hidden=512, name="fc2")
        network = sg.sym.SoftmaxOutput(x, sg.sym.Variable("label"), name="softmax")
    feeds = {
        "data": sg.Feed(sg.TensorType((64, 512), "float32"), 0),
        "label": sg.Feed(sg.TensorType((64,), "float32"), 0),
    }
    groups = {"lower": sg.cpu(0), "upper": sg.cpu(1)}
    options = runtime.Options(groups, schedule="1f1b", micro_batches=4)
    plan = runtime.plan(network, feeds, options, wrt=None)
    machine = Machine.uniform(plan.devices, Speed(flops=1e11, call=1e-6), 1e-6, 1e10)
    costs = CostModel.of_machine(machine).costs(plan.partition)
    timeline = runtime.simulate(plan.schedule, plan.partition, costs)
    return {
        "symbol": network._repr_svg_(),
        "partition": plan.partition._repr_svg_(),
        "schedule": timeline._repr_svg_(),
    }


# -- the terminal --------------------------------------------------------------------------------

ROWS, SECONDS = 30, 7  # of a screen
LINE, LETTER, EDGE = 17, 7.82, 16  # pixels
STYLE = f"""
.paper{{fill:#14181d}} .bar{{fill:#2a323b}}
text{{font:13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d8dee4;
white-space:pre}} .command{{fill:#7ee787;font-weight:bold}}
.screen{{opacity:0;animation:show {SECONDS * len(COMMANDS)}s step-end infinite}}
@keyframes show{{0%{{opacity:1}} {100 / len(COMMANDS):.3f}%{{opacity:0}}}}
@media (prefers-reduced-motion:reduce){{
.screen{{animation:none}} .screen:first-of-type{{opacity:1}}}}
"""


def terminal() -> str:
    """Draw a terminal in which the commands follow each other, from what they printed."""
    wide, high = COLUMNS * LETTER + 2 * EDGE, (ROWS + 1) * LINE + 2 * EDGE + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" '
        f'width="{wide:g}" height="{high:g}"><title>{escape("; ".join(COMMANDS.values()))}</title>'
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{wide:g}" height="{high:g}" rx="8"/>'
        f'<rect class="bar" width="{wide:g}" height="24" rx="8"/>',
    ]
    for number, (name, command) in enumerate(COMMANDS.items()):
        printed = (PICTURES / f"{name}.txt").read_text(encoding="utf-8").strip().splitlines()
        shown = [f"$ {command}", *printed[: ROWS - 1]]
        parts.append(f'<g class="screen" style="animation-delay:{number * SECONDS}s">')
        for row, line in enumerate(shown):
            kind = "" if row else ' class="command"'
            y = 24 + EDGE + LINE * row
            parts.append(f'<text{kind} x="{EDGE}" y="{y}">{escape(line[:COLUMNS])}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    main(sys.argv[1:])
