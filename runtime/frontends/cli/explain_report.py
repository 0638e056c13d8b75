"""The report of `--explain`: a table and a sentence for each node or group."""

from __future__ import annotations

from typing import Any

from runtime.frontends.cli.plan_report import prices_of
from runtime.planning.explain import Choice, Explanation, explain
from runtime.training.job import Planned
from symgraph.core.columns import aligned_columns
from symgraph.core.units import bytes_text, count_text, seconds_text

COLUMNS = 4  # of devices' peaks in a table; of more devices only the largest is shown


def explain_report(planned: Planned, names: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the report as text, and its figures with the keys of `--json`.

    Raises:
        ConfigError: an unknown name.
    """
    prices = prices_of(planned.config, planned.training)
    found = explain(planned.training, names, prices.only(planned.training.options.contexts))
    passages = [f"{_heading(e)}\n{_table(e)}\n{e.conclusion}." for e in found]
    proof = planned.training.proof
    if proof:
        passages.append(f"{proof[0].upper()}{proof[1:]}.")
    return "\n\n".join(passages), {"explanations": [_figures(e) for e in found]}


def _heading(explanation: Explanation) -> str:
    return f"{explanation.name} ({count_text(len(explanation.nodes), 'node')}):"


def _table(explanation: Explanation) -> str:
    """Return the devices on which it could be, with what that costs."""
    devices = explanation.devices
    few = len(devices) <= COLUMNS
    peaks = [f"peak of {d}" for d in devices] if few else ["largest peak"]
    rows: list[tuple[str, ...]] = [("", "on", "predicted step", "messages", *peaks, "")]
    for choice in (explanation.now, *explanation.others):
        mark = "->" if choice is explanation.now else ""
        if not choice.peaks:
            rows.append((mark, choice.where, "impossible", *("-" for _ in ("-", *peaks)), ""))
            continue
        held = [bytes_text(peak) for peak in choice.peaks]
        if not few:
            rank = max(range(len(devices)), key=choice.peaks.__getitem__)
            held = [f"{held[rank]} on {devices[rank]}"]
        figures = seconds_text(choice.seconds), bytes_text(choice.sent)
        rows.append((mark, choice.where, *figures, *held, "too large" if choice.reason else ""))
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    return "\n".join(aligned_columns(rows))


def _figures(explanation: Explanation) -> dict[str, Any]:
    devices = [str(d) for d in explanation.devices]

    def row(choice: Choice) -> dict[str, Any]:
        return {
            "devices": [str(d) for d in choice.devices],
            "predicted_step_seconds": choice.seconds if choice.peaks else None,
            "bytes_sent": choice.sent,
            "peak_bytes_predicted": dict(zip(devices, choice.peaks, strict=False)),
            "reason": choice.reason,
        }

    return {
        "name": explanation.name,
        "nodes": list(explanation.nodes),
        "now": row(explanation.now),
        "others": [row(choice) for choice in explanation.others],
        "conclusion": explanation.conclusion,
    }
