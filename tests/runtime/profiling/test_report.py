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
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError
from tests.helpers import browser as web
from tests.helpers.profiles import config, small_profile

pytest.importorskip("jinja2", reason="needs the extra `report`")
pytest.importorskip("matplotlib", reason="needs the extra `report`")
needs_browser = pytest.mark.skipif(None in (web.CHROMIUM, web.DRIVER), reason=web.MISSING)
HELD = [1 << 20, 2 << 20]


@pytest.fixture(scope="module")
def profile() -> Profile:
    return small_profile()


@pytest.fixture(scope="module")
def folder(profile, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("report")
    write_report(profile, config(to), HELD, str(to))
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

LANE = """const box = document.querySelector("canvas").getBoundingClientRect();
          return [box.left, box.top, box.width, box.height];"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_renders_at_every_size(browser, folder, width, dark):
    browser.view(width, 900, dark=dark)
    browser.open(folder / "index.html")
    assert browser.complaints() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
    drawn = browser.run("""
        const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d");
        const {data} = pen.getImageData(0, 0, canvas.width, canvas.height);
        const seen = new Set();
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] === 255) seen.add([data[i], data[i + 1], data[i + 2]].join());
        return ["119,170,221", "238,136,102"].map((colour) => seen.has(colour));""")
    assert drawn == [True, True], "forward and backward runs are drawn"


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
def test_tables_are_sorted_by_a_click(browser, folder):
    browser.view(1280, 900)
    browser.open(folder / "index.html")
    column = """const table = [...document.querySelectorAll("table")].find(
                    (t) => t.tHead.rows[0].cells[0].textContent === "operator");
                table.tHead.rows[0].cells[4].click();
                return [...table.tBodies[0].rows].map((r) => Number(r.cells[4].dataset.value));"""
    down, up = browser.run(column), browser.run(column)
    assert down == sorted(down, reverse=True)
    assert up == sorted(up)
    assert len(up) > 5
