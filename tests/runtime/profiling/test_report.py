"""The report: a page that works in a browser, by itself, and tables that say what the page says."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.profiling.analysis.profile import Profile
from runtime.profiling.report.files import require_report, write_report
from runtime.profiling.report.html import Show, render
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError
from symgraph.core.units import seconds_text
from tests.helpers import browser as web
from tests.helpers.profiles import config, small_profile

pytest.importorskip("jinja2", reason="needs the extra `report`")
pytest.importorskip("matplotlib", reason="needs the extra `report`")
needs_browser = pytest.mark.skipif(None in (web.CHROMIUM, web.DRIVER), reason=web.MISSING)
HELD = [1 << 20, 2 << 20]
VERDICT, CHANGE = "2 devices: 1.50 times as fast", "let the planner order the runs"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return small_profile()


@pytest.fixture(scope="module")
def folder(profile, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("report")
    write_report(profile, config(to), HELD, str(to), [VERDICT], CHANGE)
    return to


@pytest.fixture(scope="module")
def browser() -> Iterator[web.Browser]:
    with web.browser() as found:
        yield found


# -- files ----------------------------------------------------------------------------------------


def test_all_files_are_there(folder):
    for name in ("timeline.png", "memory.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert load_config(str(folder / "config.yaml")) == config(folder)


def test_the_page_wants_nothing_from_elsewhere(folder):
    page = (folder / "index.html").read_text()
    links = re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)""", page)
    assert {a or b for a, b in links} <= {"data:,", "#tip"}
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_tables_have_every_row(folder, profile):
    def rows(name: str) -> list[dict[str, str]]:
        with open(folder / f"{name}.csv", newline="") as file:
            return list(csv.DictReader(file))

    assert [row["name"] for row in rows("operators")] == [row.name for row in profile.operators]
    assert len(rows("nodes")) == len(profile.typical.calls)
    programs = profile.typical.record.step.schedule.programs
    assert [row["instruction"] for row in rows("instructions")] == [
        str(i) for program in programs for i in program
    ]
    for row in rows("ranks"):
        parts = [float(row[key]) for key in row if key not in ("rank", "total")]
        assert sum(parts) == pytest.approx(float(row["total"]))
    for row in rows("instructions"):
        assert float(row["predicted"]) - float(row["median"]) == pytest.approx(
            float(row["difference"])
        )


def test_where_no_report_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot write a report into .*file/x: Not a directory"):
        require_report(str(tmp_path / "file" / "x"))
    require_report(None)


# -- in a browser ---------------------------------------------------------------------------------

LANE = """const canvas = document.querySelector("canvas");
          canvas.scrollIntoView({block: "center"});
          const box = canvas.getBoundingClientRect();
          return [box.left, box.top, box.width, box.height];"""


# Parts of the page that lie on each other, or reach over the window's side.
CLASHES = """
    const parts = [...document.querySelectorAll(
        "h1, h2, p, button, input, summary, canvas, .card, .count, .key, .bar, .graph svg, pre")]
        .filter((part) => part.checkVisibility() && !part.closest(".scroll"));
    const box = new Map(parts.map((part) => [part, part.getBoundingClientRect()]));
    const found = [];
    for (const a of parts) {
        if (box.get(a).right > innerWidth + 1) found.push(a.textContent);
        for (const b of parts) {
            if (a === b || a.contains(b) || b.contains(a)) continue;
            const [p, q] = [box.get(a), box.get(b)];
            if (Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1
                && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 1)
                found.push(`${a.textContent} | ${b.textContent}`);
        }
    }
    return found;"""


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_renders_at_every_size(browser, folder, width, dark):
    """The graph was a white block in the dark, and on phones names lay under arrows."""
    browser.view(width, 900, dark=dark)
    browser.open(folder / "index.html")
    assert browser.complaints() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    assert browser.run(CLASHES) == []
    for part in ("body", ".graph svg"):
        paper = browser.run(
            f"return getComputedStyle(document.querySelector('{part}')).backgroundColor"
        )
        assert paper == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    drawn = browser.run("""
        const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d");
        const {data} = pen.getImageData(0, 0, canvas.width, canvas.height);
        let least = 0, most = 0; // runs may be narrower than a pixel
        for (let i = 0; i < data.length; i += 4) {
            least = Math.min(least, data[i + 2] - data[i]);
            most = Math.max(most, data[i + 2] - data[i]);
        }
        return [least, most];""")
    assert drawn[0] < -25, "orange: backward runs are drawn"
    assert drawn[1] > 25, "blue: forward runs are drawn"


@needs_browser
def test_hovering_says_node_bytes_and_seconds(browser, folder, profile):
    browser.view(1280, 900)
    browser.open(folder / "index.html")
    typical = profile.typical
    track = typical.measured.tracks[0]
    run, start, end = max(track.runs(), key=lambda run: run[2] - run[1])
    full = max(typical.measured.makespan, typical.predicted.makespan)
    middle = ((start + end) / 2 - typical.measured.ticks[0]) * 1e-9 / full
    left, top, width, _ = browser.run(LANE)
    x = left + 96 + middle * (width - 104)
    browser.hover(x, top + 30)
    said = browser.run("return document.querySelector('.tip').innerText")
    assert said.splitlines()[0] == str(run)
    assert f"micro-batch {run.mb}" in said
    assert "predicted" in said
    assert re.search(r"\w+: .*FLOP, .*B, .*s$", said, re.MULTILINE), "its slowest nodes"
    browser.hover(left + 300, top + 24 + 3 * 60 + 60)
    assert "memory at" in browser.run("return document.querySelector('.tip').innerText")
    browser.hover(left + 300, top - 40)
    assert browser.run("return document.querySelector('.tip').hidden")
    assert browser.complaints() == []


@needs_browser
def test_the_prediction_can_be_shown_and_zoomed(browser, folder):
    browser.view(1280, 900)
    browser.open(folder / "index.html")
    picture = "return document.querySelector('canvas').toDataURL()"
    shown = "const e = document.querySelector('.timeline').dataset; return [e.shown, e.drawn]"
    before, whole = browser.run(picture), browser.run(shown)
    browser.click("button[data-view=predicted]")
    assert browser.run(shown) == ["predicted", whole[1]]
    assert browser.run(picture) != before
    browser.click("button[data-zoom='0.5']")
    start, end = map(float, browser.run(shown)[1].split())
    assert end - start == pytest.approx(float(whole[1].split()[1]) / 2)
    browser.click("button[data-zoom=reset]")
    browser.click("button[data-view=measured]")
    assert browser.run(shown) == whole
    assert browser.run(picture) == before
    assert browser.complaints() == []


@needs_browser
def test_the_page_begins_with_what_matters(browser, folder, profile):
    browser.view(1280, 900)
    browser.open(folder / "index.html")
    first = browser.run("return document.body.innerText")[:600]
    for words in (
        *("Profile of", VERDICT, CHANGE, "cpu(0), cpu(1)"),
        *(seconds_text(profile.step), seconds_text(profile.predicted_step)),
    ):
        assert words in first


@needs_browser
def test_the_graph_fits_its_frame_and_can_be_zoomed_and_moved(browser, folder):
    browser.view(1280, 900)
    browser.open(folder / "index.html")
    seen = """const svg = document.querySelector(".graph svg"), frame = svg.getBoundingClientRect();
              svg.scrollIntoView({block: "center"});
              const boxes = [...svg.querySelectorAll("rect")].map((r) => r.getBoundingClientRect());
              return [svg.getAttribute("viewBox").split(" ").map(Number), boxes.every((box) =>
                  box.left >= frame.left - 1 && box.right <= frame.right + 1)];"""
    (*_, width, height), inside = browser.run(seen)
    assert inside
    browser.click(".graph button[data-zoom='0.6']")
    zoomed, _ = browser.run(seen)
    assert zoomed == pytest.approx([0.2 * width, 0.2 * height, 0.6 * width, 0.6 * height])
    browser.run("""const svg = document.querySelector(".graph svg");
        const at = (name, x) => svg.dispatchEvent(new PointerEvent(name,
            {clientX: x, clientY: 300, pointerId: 1, bubbles: true}));
        svg.setPointerCapture = () => {};
        at("pointerdown", 400); at("pointermove", 300); at("pointerup", 300);""")
    moved, _ = browser.run(seen)
    assert moved[0] > zoomed[0]
    assert moved[2:] == zoomed[2:]
    browser.click(".graph button[data-zoom=reset]")
    assert browser.run(seen)[0] == [0, 0, width, height]
    assert browser.complaints() == []


@needs_browser
def test_on_paper_everything_is_dark_on_white(browser, folder):
    browser.view(760, 1000, dark=True, printed=True)
    browser.open(folder / "index.html")
    look = """const of = (part) => getComputedStyle(document.querySelector(part));
              return [of("body").backgroundColor, of(".graph svg").backgroundColor,
                      of(".scroll").maxHeight, of("input").display];"""
    assert browser.run(look) == ["rgb(255, 255, 255)", "rgb(255, 255, 255)", "none", "none"]
    assert browser.run(CLASHES) == []


@needs_browser
def test_candidates_stand_side_by_side_on_a_screen_only(browser, profile, tmp_path):
    shows = [Show(profile, "", HELD, f"{place}. candidate", full=False) for place in (1, 2)]
    (tmp_path / "page.html").write_text(render("Compared", "", shows), encoding="utf-8")
    lefts = """return [...document.querySelectorAll("section")].map(
                   (part) => part.getBoundingClientRect().left);"""
    for width, columns in ((1280, 2), (390, 1)):
        browser.view(width, 900)
        browser.open(tmp_path / "page.html")
        assert len(set(browser.run(lefts))) == columns
        assert browser.run(CLASHES) == []
    assert browser.complaints() == []


@needs_browser
def test_tables_are_searched(browser, folder, profile):
    browser.view(1280, 900)
    browser.open(folder / "index.html")
    search = """const table = [...document.querySelectorAll(".table")].find(
                    (t) => t.querySelector("th").textContent === "operator");
                const input = table.querySelector("input");
                input.value = arguments[0];
                input.dispatchEvent(new Event("input"));
                return [table.querySelector(".count").textContent,
                        [...table.querySelectorAll("tbody tr")].filter((r) => !r.hidden).length];"""
    count = len(profile.operators)
    found = sum("fc_grad" in row.name for row in profile.operators)
    assert browser.run(search, "FC_grad") == [f"{found} of {count} operators", found]
    assert browser.run(search, "") == [f"{count} operators", count]


@needs_browser
def test_tables_are_sorted_by_a_click(browser, folder):
    browser.view(1280, 900)
    browser.open(folder / "index.html")
    column = """const table = [...document.querySelectorAll("table")].find(
                    (t) => t.tHead.rows[0].cells[0].textContent === "operator");
                table.tHead.rows[0].cells[4].firstChild.click();
                return [...table.tBodies[0].rows].map((r) => Number(r.cells[4].dataset.value));"""
    down, up = browser.run(column), browser.run(column)
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)
    assert len(up) > 5
