"""`python -m runtime postmortem`: a rank raises, and the records tell who waited for it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from runtime.frontends.cli.command import main as symgraph
from runtime.frontends.cli.schedule_commands import main
from symgraph.run import main as run
from tests.mpi.test_mpi_failures import write_config

FAULT = {"where": "b", "phase": "backward", "how": "raise", "step": 2}


def test_the_story_of_a_rank_that_raised_fits_80_columns(tmp_path, capsys, monkeypatch):
    path = write_config(tmp_path, args=FAULT, checkpoint={"directory": str(tmp_path / "ck")})
    assert run([str(path), "--json"]) == 1
    folder = tmp_path / "ck" / "flight"
    assert f"flight records: symgraph postmortem {folder}" in capsys.readouterr().err
    monkeypatch.setenv("COLUMNS", "80")
    assert symgraph(["postmortem", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    said = " ".join(printed.split())
    assert "rank 1 failed first at 1B0 (step 2), node 'fault_b_grad0': RuntimeError" in said
    assert "waited in R3.0 for tag 3 (hidden_grad0, micro-batch 0) from rank 1" in said

    assert symgraph(["postmortem", str(folder / "rank-0.json")]) == 0
    said = capsys.readouterr().out
    assert "no record of rank 1 was given" in said
    assert "left no record" not in said  # the others lie beside it


def test_a_rank_between_steps_did_nothing_last(tmp_path, capsys):
    """A run that ends by what it has learned said `between steps; last: `, and then nothing."""
    path = write_config(tmp_path, checkpoint={"directory": str(tmp_path / "ck")})
    assert run([str(path), "--json", "train.learning_rate=1e38"]) == 1
    capsys.readouterr()
    assert symgraph(["postmortem", str(tmp_path / "ck" / "flight")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said.count("  between steps") == 3  # ranks


def test_records_that_could_not_be_written_are_not_named(tmp_path, capsys, monkeypatch):
    """A full disk: the last line named records that were not there, and a part of one was left."""

    def full(path: Path, text: str, encoding: str) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write_config(tmp_path, args=FAULT, checkpoint={"directory": str(tmp_path / "ck")})
    monkeypatch.setattr(Path, "write_text", full)
    assert run([str(path), "--json"]) == 1
    said = capsys.readouterr().err
    assert "cannot write flight records into" in said
    assert "symgraph postmortem" not in said
    assert not list((tmp_path / "ck" / "flight").iterdir())


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "clock": {"unix": 1}}'])
def test_a_damaged_file_is_one_line(text, tmp_path, capsys):
    file = tmp_path / "rank-0.json"
    file.write_text(text)
    assert main(["postmortem", str(file)]) == 2
    assert capsys.readouterr().err == f"symgraph: error: {file} is not a whole flight record\n"
