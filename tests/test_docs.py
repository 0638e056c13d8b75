"""Programs in the documentation: they run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("page", ["module.md", "precision.md", "operators.md", "onnx.md"])
def test_the_program_of_a_page_runs(page, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"
    accuracy = re.search(r"'accuracy', ([0-9.]+)", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.85
