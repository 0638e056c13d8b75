"""The command `symgraph new`: a commented config and a network file to start from."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from runtime.frontends.cli.config_schema import config_schema
from symgraph.core.errors import ConfigError, SymgraphError
from symgraph.core.writing import writing

TEMPLATES = {".py": "network.txt", ".yaml": "config.txt"}
SCHEMA = "symgraph.schema.json"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
TAKEN = ("symgraph", "partitioner", "runtime")  # a file of that name would hide the package


def write_project(path: Path) -> str:
    """Write `path`.py and `path`.yaml, and the schema that editors check it by; say what to do.

    Raises ConfigError if the name is not one of a module, if a file is there already, or if one
    cannot be written, and RunError if the disk is full; no part of a file is left behind then.
    """
    name = path.name
    if not NAME.fullmatch(name) or name in TAKEN:
        taken = ", ".join(TAKEN)
        raise ConfigError(
            f"{name!r} cannot be the name of a network's file: use letters, digits, _ and -, "
            f"no digit first, and not {taken}"
        )
    written = [path.with_name(name + suffix) for suffix in TEMPLATES]
    for file in written:
        if file.exists():
            raise ConfigError(f"{file} exists already; choose another name")
    folder = files("runtime.frontends.cli") / "templates"
    schema = path.with_name(SCHEMA)
    drafts = [(folder / file).read_text(encoding="utf-8") for file in TEMPLATES.values()]
    texts = [draft.replace("NAME", name) for draft in drafts]
    texts.append(json.dumps(config_schema(), indent=1) + "\n")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    begun: list[Path] = []
    try:
        for file, text in zip([*written, schema], texts, strict=True):
            with writing(file):
                file.touch()
                begun.append(file)
                file.write_text(text, encoding="utf-8")
    except SymgraphError:
        for file in begun:
            with suppress(OSError):
                file.unlink()
        raise
    network, config = written
    return (
        f"wrote {network}: a small network and its data\n"
        f"wrote {config}: how to train it on two devices\n"
        f"wrote {schema}: what editors complete and check configs by\n"
        f"next: symgraph train {config}"
    )
