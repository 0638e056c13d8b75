"""The command `symgraph`: its commands, their help, and the files it writes to start from."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from runtime.frontends.cli.command import SUMMARIES, main
from runtime.frontends.cli.config_schema import config_schema
from runtime.frontends.cli.run import step_rows
from symgraph.app.run_options import MODES, OPTIONS, run_parser
from symgraph.core import columns
from symgraph.core.glossary import MEANING
from symgraph.core.glossary import column_note as note
from tests.helpers.profiles import costs
from tests.helpers.small_lm import write_config

ROOT = Path(__file__).parents[3]
SCHEMA = ROOT / "docs/config.schema.json"
CONFIGS = sorted(ROOT.glob("examples/**/*.yaml"))


@pytest.mark.parametrize("name", ["", *SUMMARIES])
def test_every_command_has_help_that_fits_80_columns(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [name]), "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert text.startswith(f"usage: symgraph {name}".strip())
    assert max(map(len, text.splitlines())) <= 80


def test_commands_have_the_options_of_their_mode_and_run_has_all(capsys):
    with pytest.raises(SystemExit):
        main(["profile", "--help"])
    text = capsys.readouterr().out
    assert "--trace" in text
    assert "--winner" not in text
    everything = run_parser().format_help()
    assert all(f"{option.flag} " in everything for option in OPTIONS)
    assert all(f"--{mode.replace('_', '-')}" in everything for mode in MODES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plann"], "unknown command 'plann': did you mean 'plan'"),
        (["plan"], "the following arguments are required: config"),
        (["plan", "a.yaml", "--winner", "b"], "unrecognized arguments: --winner"),
        (["explain", "a.yaml", "devices=[cpu(0)]"], "which node or ctx_group?"),
        (["completion", "fish"], "invalid choice: 'fish'"),
        (["new", "runtime"], "'runtime' cannot be the name of a network's file"),
        (["new", "a b"], "'a b' cannot be the name of a network's file"),
        (["new", "3a"], "use letters, digits, _ and -, no digit first"),
        (["machine", "run.yaml/m.yaml", "config.yaml"], "leave out 'config.yaml'"),
        (["postmortem", "."], "has no rank-*.json"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_search_does_not_write_over_its_config(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, "steps: 1")
    before = config.read_text()
    assert main(["search", config.name, "--winner", f"./{config.name}"]) == 2
    assert "would write over the config that is searched" in capsys.readouterr().err
    assert config.read_text() == before


def test_plan_and_explain_do_what_the_options_of_run_do(tmp_path, capsys):
    config = str(write_config(tmp_path, "steps: 1"))
    assert main(["plan", config, "pipeline.schedule=gpipe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["schedule"] == "gpipe"
    assert main(["explain", config, "decode", "pipeline.schedule=gpipe"]) == 0
    assert "decode" in capsys.readouterr().out


@pytest.mark.parametrize(("room", "file"), [(1000, "demo.py"), (10_000, "symgraph.schema.json")])
def test_a_new_project_for_which_there_is_no_room_leaves_its_name_free(
    room, file, tmp_path, monkeypatch, capsys
):
    """Half a schema, and once an empty network, was left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)  # what is imported now would be cut short
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        assert main(["new", "demo"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == f"symgraph: error: cannot write {file}: File too large\n"
    assert list(tmp_path.iterdir()) == []
    assert main(["new", "demo"]) == 0


def test_a_new_project_trains_and_predicts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "work/demo"]) == 0
    assert main(["new", "work/demo"]) == 2
    capsys.readouterr()
    saved = ["checkpoint={directory: saved}", "train.epochs=1"]
    assert main(["train", "work/demo.yaml", *saved, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["held_out"]["accuracy"] > 0.5  # of three classes
    assert main(["predict", "work/demo.yaml", *saved, "--output", "out.npz"]) == 0
    assert Path("out.npz").is_file()
    document = yaml.safe_load(Path("work/demo.yaml").read_text())
    jsonschema.validate(document, json.loads(Path("work/symgraph.schema.json").read_text()))


def keys_of(schema):
    """What editors show of each section: its keys with their help, whatever pydantic's version."""
    sections = {"": schema, **schema["$defs"]}
    return {
        name: {key: entry.get("description") for key, entry in section["properties"].items()}
        for name, section in sections.items()
    }


def test_the_schema_is_the_committed_one():
    """Write it anew by: python -m symgraph schema > docs/config.schema.json."""
    assert keys_of(json.loads(SCHEMA.read_text())) == keys_of(config_schema())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.name)
def test_examples_keep_to_the_schema_and_point_editors_at_it(config):
    text = config.read_text(encoding="utf-8")
    jsonschema.validate(yaml.safe_load(text), json.loads(SCHEMA.read_text()))
    first, _, path = text.splitlines()[0].partition("$schema=")
    assert first == "# yaml-language-server: "
    assert (config.parent / path).resolve() == SCHEMA


@pytest.mark.parametrize(
    "change",
    [
        {"pipeline": {"schedule": "1f1c"}},
        {"pipeline": {"time_segment": 0}},
        {"partition": {"constraints": [{"apart": ["a"]}]}},
        {"trian": {}},
    ],
)
def test_the_schema_refuses_mistakes(change):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"model": "a.py:build", **change}, config_schema())


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_options(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "save-costs" in script
    assert "postmortem" in script


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "symgraph", "version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("symgraph ")


# What each command prints at 80 columns; `demo` is what `new` has written.
PRINTED = {
    "new": "new {folder}/another",
    "plan": "plan {config} --dump {folder}/plan.jsonl",
    "explain": "explain {config} decode",
    "profile": "profile {config} --steps 2 --no-baseline",
    "train": "train {config}",
    "keys": "keys",
    "simulate": "simulate --stages 12 --micro-batches 20",
    "version": "version",
    "verify": "verify {folder}/plan.jsonl",
    "solve": "solve tests/partitioner/data/diamond.json",
    "predict": "predict {folder}/demo.yaml --output {folder}/o.npz {saved}",
    "compare": "compare {config} --steps 1 'candidates={{a: [], b: [pipeline.schedule=gpipe]}}'",
    "search": "search {config} --steps 1 --winner {folder}/winner.yaml",
    "machine": "machine {folder}/machine.yaml",
}
FOR_MACHINES = {"schema", "completion"}
BY_OTHERS = {"postmortem"}  # tests/runtime/frontends/test_postmortem.py
# Names of columns that need no explanation.
PLAIN = """rank|device|stage|parameters|speed|step|predicted|measured|strategy|schedule
candidate|latency|memory|bandwidth|operations|on||predicted step|memory predicted|time a step
memory bandwidth|rack/node/socket|link inside a|samples/s|peak of cpu(0)|peak of cpu(1)
memory measured|nodes|compute ms|memory MiB"""
LONG = {"compare", "search", "machine"}


def test_every_command_is_printed_at_80_columns():
    assert {*PRINTED} | FOR_MACHINES | BY_OTHERS == {*SUMMARIES}


def saved(folder):
    """Name the checkpoint of the new network, for a command."""
    return f"checkpoint.directory={folder}/saved"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with a config, a plan, and the checkpoint of a new network."""
    folder = tmp_path_factory.mktemp("printed")
    write_config(folder, "steps: 2")
    assert main(["new", f"{folder}/demo"]) == 0
    assert (
        main(["train", f"{folder}/demo.yaml", saved(folder), "train.steps=1", "train.epochs=null"])
        == 0
    )
    assert main(["plan", f"{folder}/config.yaml", "--dump", f"{folder}/plan.jsonl"]) == 0
    return folder


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in PRINTED],
)
def test_output_fits_80_columns_and_explains_them(name, written, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = set()
    monkeypatch.setattr(columns, "column_note", lambda head: shown.update(head) or note(head))
    words = PRINTED[name].format(
        config=written / "config.yaml", folder=written, saved=saved(written)
    )
    assert main(shlex.split(words)) == 0
    said = capsys.readouterr()
    printed = [*said.out.splitlines(), *said.err.splitlines()]
    assert [line for line in printed if len(line.replace(str(written), "")) > 80] == []
    assert shown - {*PLAIN.replace("\n", "|").split("|")} - {*MEANING} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "profile", "train", "simulate"])
def test_output_uses_200_columns(name, written, capsys, monkeypatch):
    """Charts take the whole width, and no table is folded."""
    monkeypatch.setenv("COLUMNS", "200")
    assert (
        main(shlex.split(PRINTED[name].format(config=written / "config.yaml", folder=written))) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    charts = [
        len(line) for line in lines if line.lstrip().startswith(("rank 0  F ", "rank 0   F "))
    ]
    assert all(190 < length <= 200 for length in charts)
    assert bool(charts) == (name != "train")
    heads = [line for line in lines if line.split()[:1] in (["stage"], ["rank"], ["operator"])]
    tables = [line.split()[:2] for line in heads if not line.startswith("  rank")]
    assert len(tables) == {"plan": 2, "profile": 3, "train": 1, "simulate": 1}[name]
    assert max(map(len, lines)) <= 200


def test_long_errors_are_wrapped_on_terminals(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    config = str(write_config(tmp_path, "steps: 1"))
    assert main(["train", config, "train.optimizer=adamm"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("symgraph: error: ")
    assert max(map(len, lines)) <= 80 < len(" ".join(lines))


STRANGE = 'a [red]"<b>&<!--\\n\\x1b[2J'
NETWORK = f"""
import symgraph as sg

def build(batch_size):
    with sg.AttrScope(ctx_group="lower"):
        x = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=8, name='{STRANGE}')
    with sg.AttrScope(ctx_group='{STRANGE}'):
        label = sg.sym.Variable("label")
        x = sg.sym.SoftmaxOutput(sg.sym.FullyConnected(x, num_hidden=3), label)
    network = sg.sym.Group([x, sg.sym.nll_stats(x, label, name="nll")])
    feeds = {{
        "data": sg.Feed(sg.TensorType((batch_size, 4), "float32"), 0),
        "label": sg.Feed(sg.TensorType((batch_size,), "float32"), 0),
    }}
    return sg.Model(network, feeds)
"""


@pytest.mark.slow
def test_names_with_markup_and_escapes_are_shown_as_they_are(tmp_path, capsys):
    """Names of operators, groups and candidates, on a terminal, in a page, and in files."""
    (tmp_path / "net.py").write_text(NETWORK)
    strange = STRANGE.encode().decode("unicode_escape")
    config = {
        "model": "net.py:build",
        "data": {"kind": "random", "batch_size": 8},
        "devices": ["cpu(0)", "cpu(1)"],
        "group2ctx": {"lower": "cpu(0)", strange: "cpu(1)"},
        "pipeline": {"micro_batches": 2},
        "partition": {"costs": str(costs(tmp_path))},
        "candidates": {strange: [], "b": ["pipeline.schedule=gpipe"]},
    }
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    measure = ["--steps", "1", "--no-baseline", "--report"]
    for words in (
        ["plan", str(path), "--dump", str(tmp_path / "plan.jsonl")],
        ["explain", str(path), strange],
        ["profile", str(path), *measure, str(tmp_path / "a"), "--trace", str(tmp_path / "t.json")],
        ["compare", str(path), *measure, str(tmp_path / "b")],
    ):
        assert main(words) == 0
        said = "".join(capsys.readouterr())
        assert "\x1b" not in said
        assert "[red]" in said or words[0] == "profile", "which prints none of them"
    for page in tmp_path.glob("*/index.html"):
        text = page.read_text(encoding="utf-8")
        assert "\x1b" not in text
        assert "<b>&" not in text
        assert "<!--" not in text
        assert "[red]" in text
    for file in [*tmp_path.glob("*/*.csv"), *tmp_path.glob("*.json*")]:
        assert "\x1b" not in file.read_text(encoding="utf-8"), file


@pytest.mark.parametrize(
    ("bubble", "devices", "used", "said"),
    [
        (0.8, 2, 2, "in 4.00 ms"),
        (0.4, 2, 2, ""),
        (0.6, 1, 1, ""),
        (0.8, 4, 4, "in 8.00 ms"),
        (0.8, 2, 1, ""),
    ],
)
def test_training_says_that_one_device_would_be_faster(bubble, devices, used, said):
    """Its runs one after another take less than a step of all devices. It was said of a network
    that was on one of them.
    """
    rows = step_rows(
        {
            "predicted_step_seconds": 0.009,
            "step_seconds": 0.01,
            "bubble_fraction": bubble,
            "devices": [f"cpu({i})" for i in range(devices)],
            "stages": [{"device": f"cpu({i})"} for i in range(used)],
        }
    )
    assert said in rows.get("one device", "")
    assert ("one device" in rows) == bool(said)
