"""Programs in the documentation: they run as they stand there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from symgraph.__main__ import main as symgraph

ROOT = Path(__file__).parent.parent
QUICK = "from runtime.profiling.calibration import pricing\npricing.SECONDS = 0.0\n"


def programs(page: str) -> list[str]:
    """The blocks of Python of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def run(program: str, folder: Path) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", ["module.md", "precision.md", "operators.md", "onnx.md"])
def test_the_program_of_a_page_runs(page, tmp_path):
    program, *others = programs(page)
    output = run(program, tmp_path)
    assert output.splitlines()[-1] == "True"
    for other in others:
        run(other, tmp_path)
    accuracy = re.search(r"'accuracy', ([0-9.]+)", output)
    assert accuracy is not None
    assert float(accuracy[1]) > 0.85


@pytest.mark.slow
def test_the_command_that_explains_a_placement_prints_what_the_page_shows(capsys):
    page = (ROOT / "docs" / "partition.md").read_text()
    (arguments,) = re.findall(r"^symgraph explain (.*)$", page, re.MULTILINE)
    config, *others = shlex.split(arguments)
    assert symgraph(["explain", str(ROOT / config), *others]) == 0
    (block,) = re.findall(r"```text\n(decode \(.*?)```", page, re.DOTALL)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all(line.split() in shown for line in block.splitlines()[:2])
    assert shown[-1][:2] == block.splitlines()[-1].split()[:2]


@pytest.mark.slow
def test_the_commands_of_the_quickstart_run_as_printed(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^symgraph (.*)$", page, re.MULTILINE)
    assert [words.split()[0] for words in commands] == [
        *("new", "train", "plan", "plan", "profile", "search", "train")
    ]
    for words in commands:
        assert symgraph(shlex.split(words)) == 0, words
    assert "accuracy" in capsys.readouterr().out
    assert (tmp_path / "runs/demo/index.html").is_file()


@pytest.mark.slow
def test_the_files_commands_and_program_of_predict_run(tmp_path):
    """The page's files in an empty folder, then its first commands, then its program."""
    text = (ROOT / "docs" / "predict.md").read_text()
    net, program = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (config,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    commands, _ = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    (tmp_path / "net.py").write_text(net)
    (tmp_path / "run.yaml").write_text(config)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = ""
    for line in (*commands.splitlines(), f"python -W error -c '{program}'"):
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        found += done.stdout
    assert "classes_output  float32[1000, 10]" in found
    assert "forward only, batch of 32 in micro-batches of 8, 8, 8, 8" in found
    assert found.splitlines()[-1] == "True"


@pytest.mark.slow
def test_the_blocks_of_the_page_on_python_run_one_after_the_other(tmp_path):
    program = "\n".join([QUICK, *programs("python.md")]).replace("seconds=5", "seconds=1")
    output = run(program, tmp_path)
    assert output.splitlines()[-1] == "True"
    assert output.count("where the time of a step goes, in ms:") == 1
    assert "plans simulated in" in output
    for name in ("whole", "parts"):
        assert [path.name for path in (tmp_path / "runs" / name).iterdir()] != []


LINK = re.compile(r"\]\(([^)\s#]+)|(?:src|srcset|href)=\"([^\"#]+)")


def test_links_to_files_lead_to_files():
    """A notebook that README links to was lost unnoticed: the site's build sees only pages."""
    broken = [
        f"{page.name}: {target}"
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
        for target in map("".join, LINK.findall(page.read_text(encoding="utf-8")))
        if ":" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
