"""The command `python -m runtime postmortem`: says from flight records who waited for whom."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.engine.flight_record import FORMAT
from symgraph.core.columns import wrapped
from symgraph.core.errors import ConfigError
from symgraph.core.units import seconds_text

SHOWN = 6  # instructions of each rank
NS = 1e9
MESSAGE = re.compile(r"([RS])(\d+)\.(\d+)")

Record = dict[str, Any]


def tell(options: Namespace) -> None:
    """Print the story of the flight records in these files and folders; ConfigError if damaged."""
    records = read(options.files)
    whole = any(Path(name).is_dir() for name in options.files)
    print(wrapped("\n".join(story(records, whole=whole))))


def read(names: Sequence[str]) -> dict[int, Record]:
    """Read flight records by rank; of several runs, those of the one that ended last."""
    paths = [p for n in names for p in (sorted(Path(n).glob("rank-*.json")) or [Path(n)])]
    found: list[Record] = []
    for path in paths:
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["format"] != FORMAT:
                raise ConfigError(f"{path}: format {record['format']}, but {FORMAT} is known")
            lines_of(record, record["clock"]["unix"])
            found.append(record)
        except IsADirectoryError:
            raise ConfigError(f"{path} has no rank-*.json: no run has failed there") from None
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name rank-*.json or a folder") from None
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            raise ConfigError(f"{path} is not a whole flight record") from None
    last = max(found, key=lambda r: r["clock"]["unix"])["run"]
    return {r["rank"]: r for r in found if r["run"] == last}


def story(records: dict[int, Record], *, whole: bool) -> list[str]:
    """Return the lines that tell what happened; `whole`: all records of a folder were read."""
    first = next(iter(records.values()))
    missing = [rank for rank in range(first["ranks"]) if rank not in records]
    failure = next((r["failure"] for r in records.values() if r["failure"]), None)
    lines = [f"run {first['run']}: {first['ranks']} ranks on {', '.join(first['devices'])}"]
    if failure is None:
        lines.append("no failure: the records were asked for while it ran")
    else:
        who = f"rank {failure['rank']} failed first" if failure["rank"] >= 0 else "it failed"
        where = f" at {failure['where']}" if failure["where"] else ""
        lines.append(f"{who}{where}: {failure['message']}")
    without = "rank {} left no record" if whole else "no record of rank {} was given"
    lines += map(without.format, missing)
    for rank in sorted(records):
        lines += ["", *lines_of(records[rank], records[rank]["clock"]["unix"])]
    return lines


def lines_of(record: Record, unix: int) -> list[str]:
    """Return what one rank was doing, and its last instructions."""
    now, doing, wait = record["clock"]["now"], record["doing"], record["wait"]
    lines = [f"rank {record['rank']} ({record['device']}, {record['host']}, pid {record['pid']}):"]
    since = doing["since"] if doing else wait["since"] if wait else None
    spent = "" if since is None else f" for {seconds_text((now - since) / NS)}"
    if doing is None:
        at = f"between steps; last: {record['at']}" if record["at"] else "between steps"
        lines.append(f"  waited for {wait['for']}{spent}" if wait else f"  {at}")
    else:
        lines.append(f"  step {doing['step']}: {_at(doing['instruction'], record)}{spent}")
    lines += ["  step  instruction   took       ended before the record"]
    for text, step, start, end in record["instructions"][-SHOWN:]:
        took, ago = seconds_text((end - start) / NS), seconds_text((now - end) / NS)
        lines.append(f"  {step:4}  {text:12}  {took:9}  {ago}")
    return lines


def _at(instruction: str, record: Record) -> str:
    """Say what an instruction under way does."""
    message = MESSAGE.fullmatch(instruction)
    if message is None or message[2] not in record["tags"]:
        return f"was in {instruction}"
    edge = record["tags"][message[2]]
    what = f"tag {message[2]} ({edge['value']}, micro-batch {message[3]})"
    if message[1] == "R":
        return f"waited in {instruction} for {what} from rank {edge['from']}"
    return f"was sending {what} to rank {edge['to']}"
