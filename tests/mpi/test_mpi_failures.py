"""Failures over MPI (cases X14, 18, 19, 20): every rank ends soon, and says why it did."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.helpers.faults import GROUPS, PHASES, WAYS
from tests.mpi.launch import Ended, launch, launch_each, left, needs_mpi

pytestmark = needs_mpi

RANKS = len(GROUPS)
STEP = 2  # the step that fails
SOON = 10.0  # seconds from a fault to the end of the last process
PROGRAM = "tests.mpi.faulty_run"

# What the failing rank 1 was at, by phase.
WHERE = {
    "forward": r"1F0 \(step 2\), node 'fault_b'",
    "backward": r"1B0 \(step 2\), node 'fault_b_grad0'",
    "update": r"U1 \(step 2\), node 'hidden_weight'",
}
# What survivors wait in: an instruction, the step, and a value.
WAIT = r"(R\d+\.\d+|D\d[FB]\d|C) \(step \d\): (\w+( of rank \d)?|the norms and losses)"

TRAIN = {"optimizer": "faulty", "learning_rate": 0.1, "steps": 5}


def write_config(folder: Path, name: str = "run.yaml", **changes: object) -> Path:
    """A config of the model with faults, one group a rank, with these sections changed."""
    text = folder / "text.txt"
    text.write_text("the cat sat on the mat and the dog sat on the log\n" * 40)
    devices = [f"cpu({r})" for r in range(RANKS)]
    config: dict[str, object] = {
        "model": "tests.helpers.faults:build",
        "data": {
            "kind": "text",
            "path": str(text),
            "batch_size": 4,
            "sequence_length": 3,
            "vocab": 20,
        },
        "devices": devices,
        "group2ctx": dict(zip(GROUPS, devices, strict=True)),
        "pipeline": {"schedule": "1f1b", "micro_batches": 2},
        "train": TRAIN,
    }
    path = folder / name
    path.write_text(yaml.safe_dump({**config, **changes}))
    return path


def assert_nothing_is_left(ended: Ended) -> None:
    processes = [int(line.split()[1]) for line in ended.lines(r"^process \d+$")]
    assert len(processes) == 2 * RANKS, str(ended)  # ranks and their guards
    assert left(processes, SOON) == []


def errors(ended: Ended, rank: int) -> list[str]:
    """The messages of a rank that stopped because of another."""
    return ended.lines(rf"^symgraph: error: rank {rank} stopped")


def test_without_a_fault_it_ends_well(tmp_path):
    ended = launch(RANKS, PROGRAM, write_config(tmp_path))
    assert ended.status == 0, str(ended)
    assert len(ended.lines(r"ends with status 0$")) == RANKS
    assert_nothing_is_left(ended)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("phase", PHASES)
def test_all_ranks_end_soon_and_say_why(phase, how, tmp_path):
    fault = {"where": "b", "phase": phase, "how": how, "step": STEP}
    ended = launch(RANKS, PROGRAM, write_config(tmp_path, args=fault))
    assert ended.status != 0
    (fault_line,) = ended.lines("^fault at ")
    assert ended.at - float(fault_line.split()[2]) < SOON
    cause = f"rank 1 failed at {WHERE[phase]}: RuntimeError: injected"
    if how == "raise":
        (line,) = ended.lines("error: rank 1 failed")
        assert re.fullmatch(f"symgraph: error: {cause}", line)
    else:
        cause = r"rank 1 failed: its process was lost \(it ended without a goodbye\)"
    for rank in (0, 2):
        (line,) = errors(ended, rank)
        waited = rf"rank {rank} stopped while waiting for .* \({WAIT}\)"
        assert re.fullmatch(f"symgraph: error: {waited}: {cause}", line), line
    enders = (0, 1, 2) if how == "raise" else (0, 2)
    assert ended.lines("ends with status") == [f"rank {r} ends with status 1" for r in enders]
    assert_nothing_is_left(ended)


def test_the_command_line_itself(tmp_path):
    """The same without any helper program around it; rank 0, which holds the lifeline's hub."""
    fault = {"where": "a", "phase": "backward", "how": "kill", "step": STEP}
    train = {"optimizer": "sgd", "learning_rate": 0.1, "steps": 5}
    ended = launch(RANKS, "symgraph.run", write_config(tmp_path, args=fault, train=train))
    assert ended.status != 0
    for rank in (1, 2):
        (line,) = errors(ended, rank)
        assert line.endswith("rank 0 failed: its process was lost (it ended without a goodbye)")
        assert re.search(WAIT, line), line


DIFFERENT = {
    "shapes": ({"args": {"width": 9}}, r"has args.width: 9, but rank 0 has None"),
    "schedule": (
        {"pipeline": {"schedule": "gpipe", "micro_batches": 2}},
        "has pipeline.schedule: 'gpipe', but rank 0 has '1f1b'",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_ranks_with_different_configs_are_refused_at_the_start(what, tmp_path):
    """Case 20: no hang and no wrong numbers, but one clear message from every rank."""
    changes, message = DIFFERENT[what]
    ours, theirs = write_config(tmp_path), write_config(tmp_path, "other.yaml", **changes)
    ended = launch_each([(2, PROGRAM, ours), (1, PROGRAM, theirs)])
    assert ended.status == 1, str(ended)
    told = ended.lines(f"^symgraph: error: rank 2 {message}")
    assert len(told) == RANKS, str(ended)
    assert ended.lines("ends with status") == [f"rank {r} ends with status 1" for r in range(3)]
    assert_nothing_is_left(ended)


def test_ranks_that_are_asked_for_different_things_are_refused_at_the_start(tmp_path):
    """They waited for each other, and the end spoke of "ranks that wait for ever"."""
    path = write_config(tmp_path)
    ended = launch_each([(2, PROGRAM, path, "--profile"), (1, PROGRAM, path)])
    assert ended.status == 1, str(ended)
    why = "rank 2 has the mode: 'train', but rank 0 has 'profile'"
    assert len(ended.lines(f"^symgraph: error: {why}")) == RANKS, str(ended)


def test_ranks_with_different_texts_are_refused_at_the_start(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    ours, theirs = write_config(tmp_path), write_config(other)
    (other / "text.txt").write_text("a wholly different text with other words in it\n" * 60)
    ended = launch_each([(1, PROGRAM, ours), (2, PROGRAM, theirs)])
    assert ended.status == 1, str(ended)
    assert len(ended.lines("^symgraph: error: .*rank 1 reads other data than rank 0")) == RANKS
    assert_nothing_is_left(ended)
