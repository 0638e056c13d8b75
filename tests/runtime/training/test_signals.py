"""SIGTERM and SIGUSR1: a checkpoint at the end of the step under way, one line, status 143."""

from __future__ import annotations

import os
import signal

import pytest

from runtime.backends.device.processor import limit_blas
from runtime.training.checkpoints.folder import CheckpointFolder
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import make_cluster
from symgraph.app.config import load_config
from symgraph.app.step_log import JsonLog
from symgraph.run import main
from tests.runtime.training.test_checkpoint import checkpointed, train

BOTH = [signal.SIGTERM, signal.SIGUSR1]


@pytest.mark.slow
@pytest.mark.parametrize("signum", BOTH)
def test_training_ends_after_the_step_and_resumes_to_the_same_bits(tmp_path, signum):
    """What Slurm sends killed the run at step 4, with an empty folder and no word."""
    path = checkpointed(tmp_path)
    before = [signal.getsignal(s) for s in BOTH]
    loss, weights, _ = train(path, f"checkpoint.directory={tmp_path / 'other'}")
    config = load_config(str(path))
    with make_cluster("threads", 2) as cluster, limit_blas(1):
        trainer = Trainer(prepare(config), cluster, load_data(config))
        summary = trainer.fit(
            on_step=lambda p: os.kill(os.getpid(), signum) if p.step == 3 else None
        )
    assert summary["stopped"] == (
        f"stopped by {signum.name} after step 4; checkpoint {tmp_path / 'saved' / 'step-00000004'}"
    )
    assert (summary["loss"], summary["perplexity"], summary["steps"]) == (None, None, 4)
    assert CheckpointFolder(tmp_path / "saved").newest() == tmp_path / "saved" / "step-00000004"
    assert [signal.getsignal(s) for s in BOTH] == before
    again, then, _ = train(path)
    assert again == loss
    assert all(then[name].tobytes() == array.tobytes() for name, array in weights.items())


@pytest.mark.parametrize("saving", [True, False])
def test_the_command_line_says_it_in_one_line(tmp_path, monkeypatch, capsys, saving):
    path, write = checkpointed(tmp_path), JsonLog.write

    def stopping(self, **figures):
        if figures["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        write(self, **figures)

    monkeypatch.setattr(JsonLog, "write", stopping)
    words = [str(path), "--log", str(tmp_path / "log")]
    assert main(words if saving else [*words, "checkpoint=null"]) == 143
    said = capsys.readouterr().err.splitlines()
    what = f"checkpoint {tmp_path / 'saved' / 'step-00000003'}"
    if not saving:
        what = "nothing was saved, as the config has no checkpoint"
    assert said == [f"symgraph: stopped by SIGTERM after step 3; {what}"]


def test_before_the_first_step_it_ends_at_once(tmp_path, monkeypatch, capsys):
    path = checkpointed(tmp_path)
    monkeypatch.setattr(
        "runtime.training.data.table.load_data", lambda config: os.kill(os.getpid(), signal.SIGTERM)
    )
    assert main([str(path)]) == 143
    assert capsys.readouterr().err.splitlines()[-1].startswith("symgraph: stopped by SIGTERM")
    assert not (tmp_path / "saved").exists() or not [*(tmp_path / "saved").glob("step-*")]
