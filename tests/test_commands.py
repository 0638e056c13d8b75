"""Commands in README and docs: each has somebody who runs it, and most are run here."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest

from symgraph.__main__ import main as symgraph
from symgraph.core.errors import SymgraphError
from tests.helpers.profiles import costs

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HERE = "here"
PERSON = "a person"  # who has what the command needs

# What begins or contains this -> who runs it; the first that fits counts.
WHO = (
    (r"^python3 -m venv \.venv && \.venv/bin/pip install -e", ".ci/run"),
    (r"--torch|--jax|--mxnet|mxnet-1\.2\.1|peers|/bin/pip", f"{PERSON}: installs other libraries"),
    (r"gpu|GPU|bfloat16|machine=cluster", f"{PERSON}: needs GPUs or their packages"),
    (r"hosts\.txt|^srun", f"{PERSON}: needs several hosts"),
    (r"^(python3 -m venv|pip install)", f"{PERSON}: see tests/test_wheel.py"),
    (r"examples\.cluster", "tests/examples/test_cluster.py"),
    (r"benchmarks\.(bucketing|communication|partition|search|networks)", f"{PERSON}: minutes"),
    (r"examples/lstm_ptb/", "tests/examples/test_lstm_ptb.py"),
    (r"^mpiexec -n \d symgraph machine", "tests/mpi/test_mpi_measure.py"),
    (r"^mpiexec", "tests/mpi/test_mpi_checkpoint.py"),
    (r"--restarts", "tests/runtime/frontends/test_supervisor.py"),
    (r"net\.onnx", "tests/runtime/training/test_models.py"),
    (r"in\.npz|run\.yaml|demo|winner\.yaml", "tests/test_docs.py"),
    (r"(profile|compare|search) examples/(lstm_lm|partitions)", "docs/make_pictures.py"),
    (r"examples/(vgg|tagger)\.yaml$", "tests/examples/test_data_configs.py"),
    (r"^symgraph ", HERE),
)
TRAINS = ("train.steps=2", "train.seconds=null", "train.epochs=null", "evaluate.tokens=200")


def commands() -> dict[str, str]:
    """Each command of a block of shell, without its comment -> its page."""
    found: dict[str, str] = {}
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                command = re.split(r"\s+# ", line)[0].strip()
                if command:
                    found.setdefault(re.sub(r"\s+", " ", command), page.name)
    return found


def who(command: str) -> str:
    """Who runs a command; "": nobody."""
    return next((name for words, name in WHO if re.search(words, command)), "")


COMMANDS = commands()
RUN_HERE = [command for command in COMMANDS if who(command) == HERE]


def test_somebody_runs_every_command():
    assert [f"{page}: {command}" for command, page in COMMANDS.items() if not who(command)] == []
    for _, name in WHO:
        file = name.removeprefix(f"{PERSON}: see ")
        if name != HERE and not file.startswith(PERSON):
            assert (ROOT / file).is_file(), name
    assert {who(command) for command in COMMANDS} == {name for _, name in WHO}, "out of date"
    assert len(RUN_HERE) > 30


@pytest.mark.filterwarnings("default")  # as users see them
@pytest.mark.slow  # plans the main job many times
@pytest.mark.parametrize("page", sorted({COMMANDS[command] for command in RUN_HERE}))
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    """In their order, in one folder; trained for two steps, with costs from a file."""
    for name in ("examples", "tests"):
        os.symlink(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for command in [one for one in RUN_HERE if COMMANDS[one] == page]:
        words = shlex.split(command)[1:]
        if any(word.endswith("_lm.yaml") for word in words):
            words.append(f"partition.costs={costs(tmp_path)}")
        if words[0] == "train":
            words += TRAINS
        if words[0] == "profile":
            words += ["--steps=1", "--no-baseline"]
        if words[0] == "predict":
            words += [f"checkpoint.directory={trained(tmp_path)}"]
        if words[0] == "machine" and importlib.util.find_spec("mpi4py") is None:
            continue
        try:
            assert symgraph(words) == 0, command
        except SymgraphError as error:
            pytest.fail(f"{command}: {error}")
        printed = capsys.readouterr().out
        assert printed or "--log" in command, command


def trained(folder: Path) -> Path:
    """A folder with a checkpoint of the table's network."""
    saved = folder / "saved"
    words = ["train", "examples/table.yaml", f"checkpoint.directory={saved}", *TRAINS[:3]]
    assert symgraph(words) == 0
    return saved
