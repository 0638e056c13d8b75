"""Draw docs/pictures/architecture.svg: the folders of the three packages and who imports whom.

    python docs/draw_architecture.py      from the root of the repository; needs networkx and
                                          the extra `report`

Everything in the picture is read from the code. An arrow leads from a folder to one that it
imports; arrows that follow from others are left out. A folder stands above everything that it
imports.
"""

from __future__ import annotations

import ast
from pathlib import Path

import matplotlib as mpl
import networkx as nx
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent
COLORS = {"symgraph": "#cfe2f3", "partitioner": "#d9ead3", "runtime": "#fce5cd"}
WIDTH, HEIGHT = 2.5, 1.0  # of a box with the gap beside it


def rooms() -> nx.DiGraph:
    """Room -> imported room, for the folders inside the packages; loose files are left out."""
    graph = nx.DiGraph()
    for package in COLORS:
        for file in (ROOT / package).rglob("*.py"):
            room = room_of(file.relative_to(ROOT).with_suffix("").parts)
            if room is None:
                continue
            graph.add_node(room)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    for alias in node.names:
                        to = room_of((*node.module.split("."), alias.name))
                        if to is not None and to != room:
                            graph.add_edge(room, to)
    return graph


def room_of(parts: tuple[str, ...]) -> str | None:
    """The room of a file's path without its suffix, or None for what is in no room."""
    inside = parts[0] in COLORS and len(parts) > 2 and (ROOT / parts[0] / parts[1]).is_dir()
    return f"{parts[0]}.{parts[1]}" if inside else None


def floors(graph: nx.DiGraph) -> dict[str, int]:
    """Room -> floor: one above the highest room that it imports."""
    floor: dict[str, int] = {}
    for room in reversed(list(nx.topological_sort(graph))):
        floor[room] = 1 + max((floor[to] for to in graph[room]), default=-1)
    return floor


def places(graph: nx.DiGraph) -> dict[str, tuple[float, float]]:
    """Room -> the middle of its box: floors upwards, rooms of a floor side by side."""
    floor = floors(graph)
    at: dict[str, tuple[float, float]] = {}
    for level in range(max(floor.values()) + 1):
        row = sorted((r for r in floor if floor[r] == level), key=lambda r: _mean(graph, at, r))
        for i, room in enumerate(row):
            at[room] = ((i - (len(row) - 1) / 2) * WIDTH, level * HEIGHT)
    return at


def _mean(graph: nx.DiGraph, at: dict[str, tuple[float, float]], room: str) -> tuple[float, str]:
    """Where a room would stand if it stood right above what it imports."""
    below = [at[to][0] for to in graph[room]]
    return (sum(below) / len(below) if below else 0.0, room)


def main() -> None:
    """Draw the picture."""
    graph = rooms()
    at = places(graph)
    mpl.rcParams["svg.hashsalt"] = "symgraph"  # the same file for the same code
    figure = Figure(figsize=(11, 12))
    axes = figure.add_axes((0, 0, 1, 1))
    for room, to in nx.transitive_reduction(graph).edges:
        axes.annotate(
            "",
            xy=(at[to][0], at[to][1] + 0.22),
            xytext=(at[room][0], at[room][1] - 0.22),
            arrowprops={"arrowstyle": "-|>", "color": "#888888", "linewidth": 0.8},
        )
    for room, (x, y) in at.items():
        package, name = room.split(".")
        axes.text(
            x,
            y,
            f"{package}\n{name}",
            ha="center",
            va="center",
            bbox={
                "boxstyle": "round,pad=0.4",
                "facecolor": COLORS[package],
                "edgecolor": "#666666",
            },
        )
    xs, ys = zip(*at.values(), strict=True)
    axes.set_xlim(min(xs) - WIDTH / 2, max(xs) + WIDTH / 2)
    axes.set_ylim(min(ys) - HEIGHT / 2, max(ys) + HEIGHT / 2)
    axes.axis("off")
    figure.savefig(ROOT / "docs" / "pictures" / "architecture.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
