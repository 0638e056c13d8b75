"""docs/from_pytorch.md: its program prints what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/from_pytorch.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_program_prints_what_the_page_says():
    program, _ = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (said,) = re.findall(r"^It prints\n\n```\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == said
