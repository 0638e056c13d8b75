"""Drawings: what the pictures of placements and of networks share, as SVG and as DOT."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from symgraph.core.visible import visible_lines

COLOURS = (
    "#8dd3c7",
    "#fdb462",
    "#bebada",
    "#fb8072",
    "#80b1d3",
    "#b3de69",
    "#fccde5",
    "#ffed6f",
    "#bc80bd",
    "#d9d9d9",
)
THEMES = (
    ".drawing{color:#1d2228;background:#fff}"
    "@media screen and (prefers-color-scheme:dark){.drawing{color:#e4e8ec;background:#14181d}}"
)


@dataclass(frozen=True)
class Arrow:
    """Values from one box to another."""

    source: int  #: the number of the box that makes them
    target: int  #: the number of the box that reads them
    label: str
    crosses: bool  #: whether they are sent from one device to another


def colour(number: int) -> str:
    """Return the colour of a device or kind; they repeat."""
    return COLOURS[number % len(COLOURS)]


def quoted(text: str) -> str:
    """Quote a string for the DOT language."""
    return (
        '"'
        + visible_lines(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        + '"'
    )


def svg_document(
    width: float, height: float, parts: Iterable[str], *, font_size: int, tip_size: int
) -> str:
    """Make a document of its parts; arrows end in the marker `tip`.

    Its ink and paper are those of the theme that the reader prefers.
    """
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="drawing" width="{width:g}" '
        f'height="{height:g}" viewBox="0 0 {width:g} {height:g}" font-family="sans-serif" '
        f'font-size="{font_size}">\n<style>{THEMES}</style>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" '
        f'markerWidth="{tip_size}" markerHeight="{tip_size}" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="context-stroke"/></marker></defs>'
    )
    return visible_lines("\n".join([head, *parts, "</svg>"])) + "\n"


def svg_box(
    corner: tuple[float, float],
    size: tuple[int, int],
    title: str,
    lines: tuple[str, str],
    fill: str,
    *,
    text_at: tuple[int, int],
    radius: int = 4,
) -> str:
    """Draw a box with two lines of text; its title is shown when the mouse is over it."""
    (x, y), (width, height), (right, down) = corner, size, text_at
    first, second = map(escape, lines)
    return (
        f'<g><title>{escape(title)}</title><rect x="{x:g}" y="{y:g}" width="{width}" '
        f'height="{height}" rx="{radius}" stroke="black" fill="{fill}"/>'
        f'<text x="{x + right:g}" y="{y + down:g}" fill="#111">{first}</text>'
        f'<text x="{x + right:g}" y="{y + down + 15:g}" fill="#444">{second}</text></g>'
    )


def svg_arrow(path: str, *, crosses: bool, width: float, content: str = "") -> str:
    """Draw a path that ends in a tip: in ink if it crosses devices, else thin and grey."""
    look = f'stroke="currentColor" stroke-width="{width:g}"' if crosses else 'stroke="#8a939c"'
    head = f'<path d="{path}" fill="none" {look} marker-end="url(#tip)"'
    return f"{head}>{content}</path>" if content else f"{head}/>"
