"""Notebooks: run the cells of one in this process, and keep what they show."""

from __future__ import annotations

import ast
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

VIEWS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}


def execute(path: Path) -> dict[str, Any]:
    """Return the notebook with the outputs of all its cells of code, run in turn."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with redirect_stdout(io.StringIO()) as said:
            exec(compile(tree, str(path), "exec"), names)
            value = last and eval(compile(ast.Expression(last.value), str(path), "eval"), names)
        cell["execution_count"], cell["outputs"] = number, []
        if said.getvalue():
            text = said.getvalue().splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": text})
        if value is not None:
            shown = {"output_type": "execute_result", "execution_count": number, "metadata": {}}
            cell["outputs"].append({**shown, "data": views(value)})
    return notebook


def views(value: object) -> dict[str, list[str]]:
    """Return what a notebook shows of a value, by media type, in lines."""
    found = {"text/plain": repr(value)}
    for kind, name in VIEWS.items():
        view = getattr(value, name, lambda: None)()
        if view is not None:
            found[kind] = view
    return {kind: text.splitlines(keepends=True) for kind, text in found.items()}


def write(notebook: dict[str, Any], path: Path) -> None:
    """Write a notebook as Jupyter does."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")
