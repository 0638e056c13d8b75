"""The command `symgraph`: its commands, their help, and the files it writes to start from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from runtime.frontends.cli.command import SUMMARIES, main
from runtime.frontends.cli.config_schema import config_schema
from symgraph.app.run_options import MODES, OPTIONS, run_parser
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
    ],
)
def test_mistakes_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_plan_and_explain_do_what_the_options_of_run_do(tmp_path, capsys):
    config = str(write_config(tmp_path, "steps: 1"))
    assert main(["plan", config, "pipeline.schedule=gpipe", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["schedule"] == "gpipe"
    assert main(["explain", config, "decode", "pipeline.schedule=gpipe"]) == 0
    assert "decode" in capsys.readouterr().out


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


@pytest.mark.parametrize(
    "words",
    [
        "plan {config}",
        "explain {config} decode",
        "profile {config} --steps 2 --no-baseline",
        "train {config}",
        "keys",
        "simulate --stages 12 --micro-batches 20",
        "version",
    ],
)
def test_output_fits_80_columns(words, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    config = write_config(tmp_path, "steps: 2")
    assert main(words.format(config=config).split()) == 0
    long = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
    assert long == []
