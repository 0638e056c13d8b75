"""Pictures of timelines: charts as laid out here, SVG files read back."""

from __future__ import annotations

from fractions import Fraction
from xml.etree import ElementTree

import numpy as np
import pytest

from runtime.schedule.text import parse
from runtime.schedule.timeline import EMPTY, Timeline, Track
from runtime.schedule.views.draw import chart, legend, svg

SVG = "{http://www.w3.org/2000/svg}"


def timed(*tracks: str, unit: Fraction = Fraction(1)) -> Timeline:
    """A timeline from tracks like "0F0@0-1 S0.0@1-1": instructions with start and end tick."""
    made = []
    for track in tracks:
        words = [word.split("@") for word in track.split()]
        program = parse(["rank 0: " + " ".join(token for token, _ in words)]).programs[0]
        times = np.array([when.split("-") for _, when in words], np.int64).reshape(-1, 2)
        made.append(Track(program, times[:, 0], times[:, 1]))
    return Timeline(tuple(made), unit)


TWO = timed(  # 1F1B of two stages; the backward takes two ticks, a message half of one
    "0F0@0-2 S0.0@2-2 0F1@2-4 S0.1@4-4 R1.0@4-10 D0F0@10-10 0B0@10-14 R1.1@14-16 0B1@16-20 "
    "U0@20-21",
    "R0.0@0-3 1F0@3-5 1B0@5-9 S1.0@9-9 R0.1@9-9 1F1@9-11 1B1@11-15 S1.1@15-15 U1@15-15",
    unit=Fraction(1, 2),
)
CUT = timed("0F0@0-1 0F0.1@1-2 1I0@2-3 1W0@3-4 0B0.1@4-5 0B0@5-6")  # two stages on one rank

# -- chart ---------------------------------------------------------------------------------------


def test_chart_of_forward_and_backward():
    assert chart(TWO, 21).splitlines() == [
        "  rank 0  F 0011.................",
        "          B ..........0000..1111.",
        "  rank 1  F ...00....11..........",
        "          B .....0000..1111......",
    ]


def test_chart_has_a_row_for_each_phase_that_runs():
    assert chart(CUT, 6).splitlines() == [
        "  rank 0  F 01....",
        "          B ....10",
        "          I ..0...",
        "          W ...0..",
    ]
    assert chart(timed("0F0@0-1 0F1@1-2"), 4).splitlines() == ["  rank 0  F 0011"]


def test_chart_shows_segments_of_a_single_micro_batch():
    assert chart(timed("0F0@0-1 0F0.1@1-2 0F0.12@2-3"), 3) == "  rank 0  F 012"
    assert chart(timed("0F0@0-1 0F0.1@1-2 0F1@2-3"), 3) == "  rank 0  F 001"


def test_chart_shows_the_shortest_runs_and_begins_at_the_first_start():
    """Measured timelines do not begin at 0; a run that takes no time is seen all the same."""
    assert chart(timed("0F12@1000-1100 0F13@1100-1100"), 8) == "  rank 0  F 22222223"
    assert chart(timed("0F7@5-5"), 3) == "  rank 0  F 7.."


def test_chart_aligns_many_ranks_and_leaves_absent_ones_empty():
    tracks = [EMPTY] * 10 + [timed("0F0@0-1").tracks[0]]
    lines = chart(Timeline(tuple(tracks), Fraction(1)), 2).splitlines()
    assert (lines[0], lines[-1]) == ("  rank 0   F ..", "  rank 10  F 00")
    assert chart(Timeline((EMPTY,), Fraction(1))) == legend(Timeline((EMPTY,), Fraction(1))) == ""


def test_the_legend_says_what_letters_and_digits_mean():
    assert legend(TWO) == "  F forward, B backward; digits: micro-batches"
    assert legend(timed("0F0@0-1 0F0.1@1-2")) == "  F forward; digits: time segments"


# -- SVG -----------------------------------------------------------------------------------------


def read(timeline: Timeline, title: str = "") -> ElementTree.Element:
    return ElementTree.fromstring(svg(timeline, title))


def boxes(picture: ElementTree.Element) -> dict[str, ElementTree.Element]:
    """Instruction -> its box, by the tips that show when one points at it."""
    rects = [r for r in picture.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    return {r.find(f"{SVG}title").text.split(":")[0]: r for r in rects}


def words(picture: ElementTree.Element) -> list[str]:
    return [t.text for t in picture.iter(f"{SVG}text") if t.text]


def test_boxes_stand_where_their_times_are():
    found = boxes(read(TWO))
    assert set(found) == {"0F0", "0F1", "0B0", "0B1", "1F0", "1F1", "1B0", "1B1", "U0"}
    x, width = float(found["1B0"].get("x")), float(found["1B0"].get("width"))
    left, whole = float(found["0F0"].get("x")), 1200
    assert x - left == pytest.approx(whole * 5 / 21, abs=0.01)
    assert width == pytest.approx(whole * 4 / 21, abs=0.01)
    assert [float(found[i].get("y")) for i in ("0F0", "0B1", "1B0")] == [76, 76, 114]
    assert found["1B0"].find(f"{SVG}title").text == "1B0: 2.5 to 4.5"
    assert [found[i].get("class") for i in ("0F0", "1B1", "U0")] == ["F", "B", "o"]


def test_title_figures_legend_and_axis():
    picture = read(TWO, "gpipe <2 & 3>")
    shown = words(picture)
    assert shown[0] == picture.find(f"{SVG}title").text == "gpipe <2 & 3>"
    assert shown[1].startswith("makespan 10.5, bubble 40.5% of all ranks' time (68.0% of the ideal")
    assert {"F forward", "B backward", "message", "rank 0", "rank 1", "time"} <= set(shown)
    assert not {"I input gradients", "W weight gradients"} & set(shown)
    ticks = [line for line in picture.iter(f"{SVG}line") if line.get("class") is None]
    labels = [t.text for t in picture.iter(f"{SVG}text") if t.get("class") == "a"][:-1]
    assert labels == ["0", "2", "4", "6", "8", "10"]
    assert len(ticks) == 6
    assert float(ticks[1].get("x1")) == pytest.approx(70 + 1200 * 4 / 21, abs=0.01)


def test_micro_batches_are_written_where_there_is_room():
    assert [t for t in words(read(CUT)) if t[0] == "0" and t != "0"] == ["0.1", "0.1"]
    narrow = timed(" ".join(f"0F{i}@{i}-{i + 1}" for i in range(300)))
    assert not [t for t in read(narrow).iter(f"{SVG}text") if t.get("class") == "n"]
    assert len(boxes(read(narrow))) == 300


def test_later_stages_of_a_rank_are_paler():
    found = boxes(read(CUT))
    assert [found[i].get("fill-opacity") for i in ("0F0", "1I0")] == [None, "0.70"]


def test_an_arrow_for_each_message():
    arrows = [a for a in read(TWO).iter(f"{SVG}line") if a.get("class") == "m"][1:]  # 0: legend
    ends = [[float(a.get(k)) for k in ("x1", "x2", "y1", "y2")] for a in arrows]
    assert len(ends) == 4
    first = [e for e in ends if e[0] == pytest.approx(70 + 1200 * 2 / 21, abs=0.01)]
    assert first[0][1] == pytest.approx(70 + 1200 * 3 / 21, abs=0.01)  # S0.0 at 2, R0.0 till 3
    assert [y1 < y2 for *_, y1, y2 in ends] == [False, False, True, True]


def test_pictures_of_hardly_anything():
    for timeline in (Timeline((EMPTY,), Fraction(1)), timed("0F0@3-3"), timed("R0.0@0-1")):
        assert read(timeline).tag == f"{SVG}svg"
