"""What `pip install` brings runs without the checkout, and `pip install -e` brings types."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of what is installed."""
    folder = tmp_path_factory.mktemp("tree")
    kept = ["symgraph", "partitioner", "runtime", "pyproject.toml", "README.md", "LICENSE"]
    subprocess.run(["cp", "-r", *kept, folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def site(tree, tmp_path_factory) -> Path:
    """A folder into which the built wheel is installed, without what it depends on."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", folder, tree], check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    return target


@pytest.mark.slow  # builds, with setuptools from PyPI, and installs
def test_the_wheel_runs_the_quickstart_and_the_readmes_program(site, tmp_path):
    page = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    new, train, plan, *_ = re.findall(r"^symgraph .*$", page, re.MULTILINE)
    profile = next(line for line in page.splitlines() if line.startswith("symgraph profile"))
    (program,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )
    command = [str(site / "bin" / "symgraph")]
    words = [[*command, *shlex.split(line)[1:]] for line in (new, train, plan, profile)]
    words[1] += ["train.epochs=1"]
    words[-1] += ["--steps", "2", "--no-baseline"]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "HOME": str(tmp_path)}
    for line in (*words, [sys.executable, "-c", program]):
        done = subprocess.run(
            line, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, (line, done.stderr)
    assert done.stdout.startswith("(32, 10) <Plan: ")
    assert (tmp_path / "runs/demo/index.html").is_file()


@pytest.mark.slow  # makes a virtual environment, with setuptools from PyPI
def test_mypy_finds_the_types_of_an_editable_install(tree, tmp_path):
    """They were not found from other folders: setuptools' hook for imports is not for mypy."""
    pytest.importorskip("mypy")
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    pip = [python, "-m", "pip", "-q", "install", "--no-deps", "-e", tree]
    subprocess.run(pip, check=True, timeout=120)
    call = "symgraph.sym.FullyConnected(symgraph.sym.Variable('x'), num_hiden=3)"
    (tmp_path / "script.py").write_text(f"import symgraph\n\n{call}\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", python, "script.py"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert 'did you mean "num_hidden"?' in found.stdout
