"""The report: a folder with the page of a profile and everything that it is made of."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runtime.planning.costs.files import save_prices
from runtime.profiling.analysis.profile import Profile
from runtime.profiling.report.csv import write_tables
from runtime.profiling.report.html import Show, render
from runtime.profiling.report.pictures import memory_png, timeline_png
from runtime.profiling.report.trace import shown
from runtime.schedule.views.trace import write_traces
from symgraph.app.command_line import require_folder
from symgraph.app.config import Config
from symgraph.core.errors import ConfigError, RunError
from symgraph.core.units import count_text

PAGE = "index.html"
WANTED = ("jinja2", "matplotlib")  # the extra `report`


def require_report(folder: str | None) -> None:
    """ConfigError if a report cannot be written there; None: none is wanted."""
    if folder is None:
        return
    missing = [name for name in WANTED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"a report needs {' and '.join(missing)}: pip install 'symgraph[report]'")
    require_folder(folder, "cannot write a report into")


def write_report(
    profile: Profile,
    config: Config,
    memory: list[int],
    folder: str,
    verdict: Sequence[str] = (),
    change: str = "",
) -> Path:
    """Write the report; return the path of its page.

    These are index.html, config.yaml, trace.json, timeline.png, memory.png, a CSV file for each
    table, and costs.json if costs were measured here.

    Args:
        profile: what it shows.
        config: the config as it was given.
        memory: bytes held, by rank.
        folder: where it is written.
        verdict: the sentences with which the page begins.
        change: the one thing to change next.
    """
    to = Path(folder)
    text = config.to_yaml()
    with writing_report(folder):
        (to / "config.yaml").write_text(text, encoding="utf-8")
        if profile.prices.measured:
            save_prices(profile.prices, to / "costs.json")
        write_traces(shown(profile), to / "trace.json")
        write_tables(profile, to)
        timeline_png(profile, to / "timeline.png")
        memory_png(profile, to / "memory.png")
        steps = count_text(profile.steps, "measured step")
        about = (
            f"{', '.join(config.devices)}; {steps}; the median one is shown; products by "
            f"{profile.products}"
        )
        shows = [Show(profile, text, memory, change=change)]
        page = render(f"Profile of {config.model}", about, shows, verdict=verdict)
        (to / PAGE).write_text(page, encoding="utf-8")
    return to / PAGE


@contextmanager
def writing_report(folder: str) -> Iterator[None]:
    """RunError for what the system refuses meanwhile, such as room on a full disk."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write the report into {folder}: {error.strerror}") from error
