"""The JSON Schema of config files, for editors that complete and check YAML."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from partitioner.strategies import STRATEGIES
from runtime.schedule.generators.table import SCHEDULES
from symgraph.app.config import Config
from symgraph.frontend.optimizer import OPTIMIZERS


def config_schema() -> dict[str, Any]:
    """Return the schema, with the names that a key may have where its type is any text."""
    schema = Config.model_json_schema()
    schema["title"] = "symgraph's config file"
    schema["$schema"] = "http://json-schema.org/draft-07/schema#"
    schema["required"] = ["model"]  # without data, only training is refused
    _name(schema, "PipelineConfig", "schedule", [*SCHEDULES, "auto"], other="a file of runs")
    _name(schema, "PartitionConfig", "strategy", [*STRATEGIES, "auto"])
    _name(schema, "TrainConfig", "optimizer", OPTIMIZERS)
    return schema


def _name(
    schema: dict[str, Any], section: str, key: str, names: Iterable[str], other: str = ""
) -> None:
    """List the names that a key may have, and say what other text it may be."""
    entry = schema["$defs"][section]["properties"][key]
    kinds = [part for part in entry.pop("anyOf", []) if part["type"] != "string"]
    entry.pop("type", None)
    entry["anyOf"] = [{"enum": sorted(names)}, *kinds]
    if other:
        entry["anyOf"].append({"type": "string", "pattern": r"\.(csv|txt)$", "title": other})
