"""The command line as a user meets it: what it prints, and its exit status.

Most commands run in the tests' process, since one of its own takes a second to begin; those that
are about the process have one.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from runtime.frontends.cli.schedule_commands import main as runtime
from symgraph.run import main
from tests.helpers.profiles import costs
from tests.helpers.small_lm import write_bucketed, write_config
from tests.runtime.training.data import nets

ROOT = Path(__file__).parents[2]
KEYS = {
    "loss",
    "perplexity",
    "steps",
    "tokens",
    "tokens_per_second",
    "step_seconds",
    "predicted_step_seconds",
    "bubble_fraction",
    "schedule",
    "micro_batches",
    "time_segment",
    "placement",
    "stages",
    "transport",
}
STAGE_KEYS = {
    "seconds",
    "flops",
    "parameter_bytes",
    "activation_bytes",
    "peak_bytes_predicted",
    "peak_bytes_measured",
    "bytes_sent",
    "messages",
}


@pytest.fixture
def config(tmp_path):
    train = "optimizer: sgd, learning_rate: 0.5, clip_global_norm: 5.0, steps: 7"
    return str(write_config(tmp_path, train))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "symgraph.run", *arguments]


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In this process."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
        status = main(arguments)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


def figures(*arguments: str) -> dict[str, object]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_training_prints_plain_lines_and_a_summary(config):
    done = run_alone(config)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "held-out perplexity" in done.stdout
    assert done.stderr == ""


def test_json_has_the_documented_keys_and_stdout_is_only_that(config):
    done = run_alone(config, "--json")
    found = json.loads(done.stdout)
    assert found.keys() >= KEYS
    assert [s.keys() >= STAGE_KEYS for s in found["stages"]] == [True, True]
    assert found["steps"] == 7
    assert found["tokens"] == 7 * 6 * 5
    assert found["transport"] == "threads"
    assert "held-out perplexity" in done.stderr


@pytest.mark.slow
def test_placement_schedule_and_devices_change_no_bit_of_the_loss(config, tmp_path):
    given = (config, "blas_threads=1", f"partition.costs={costs(tmp_path)}")
    want = figures(*given)["loss"]
    for overrides in (
        ["pipeline.schedule=gpipe"],
        ["devices=[cpu(0)]"],
        ["devices=[cpu(0), cpu(1), cpu(2)]", "group2ctx.layer0=cpu(2)"],
        ["pipeline.schedule=zb-h1", "pipeline.recompute=all"],
        ["group2ctx={}", "partition.strategy=optimal"],
        [
            "group2ctx={decode: cpu(0)}",
            "partition.strategy=auto",
            "partition.split=none",
            "pipeline.schedule=auto",
        ],
    ):
        assert figures(*given, *overrides)["loss"] == want
    segments = figures(*given, "pipeline.time_segment=2")["loss"]
    assert segments == pytest.approx(want, rel=1e-5)  # products of other sizes round otherwise


@pytest.mark.slow
def test_what_is_left_open_is_chosen_and_shown(config):
    overrides = [
        "pipeline.schedule=auto",
        "pipeline.time_segment=auto",
        "pipeline.recompute=auto",
        "pipeline.micro_batches=2",
        "partition.memory=1MiB",
    ]
    done = run(config, *overrides, "--plan", "--json")
    assert done.returncode == 0, done.stderr
    assert "measured kernels" in done.stdout
    assert "tried:" in done.stdout
    for schedule in ("gpipe", "1f1b", "zb-v", "wavefront", "auto"):
        assert f" {schedule} " in done.stdout
    assert "-> " in done.stdout


@pytest.mark.slow
def test_strategies_are_compared_and_the_groups_can_be_pasted(config, tmp_path):
    more = ["group2ctx={}", "partition.strategy=auto", f"partition.costs={costs(tmp_path)}"]
    done = run(config, *more, "--plan", "--json")
    assert done.returncode == 0, done.stderr
    for strategy in ("uniform", "parameters", "chain", "optimal", "noncontiguous", "refine"):
        assert f" {strategy} " in done.stdout
    assert "\ngroup2ctx:\n  embed: cpu(" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["placement"].keys() >= {"embed", "decode"}


@pytest.mark.slow
def test_plans_are_made_for_the_machine_of_a_file(config, tmp_path):
    """A machine of a tenth of the speed takes ten times as long; nothing here is measured."""
    steps = []
    for flops in ("100 MFLOP/s", "10 MFLOP/s"):
        machine = tmp_path / "machine.yaml"
        machine.write_text(
            f"devices:\n  cpu(0): {{flops: {flops}}}\n  cpu(1): {{flops: {flops}}}\n"
            "links:\n  socket: {latency: 0s, bandwidth: 100GB/s}\n"
        )
        more = ["group2ctx={}", "partition.strategy=optimal", f"machine={machine}"]
        done = run(config, *more, "--plan", "--json")
        assert done.returncode == 0, done.stderr
        steps.append(json.loads(done.stdout.splitlines()[-1])["predicted_step_seconds"])
    assert 8 * steps[0] < steps[1] < 10 * steps[0]


def test_an_unknown_strategy(config):
    done = run(config, "partition.strategy=optimol")
    assert done.returncode == 2
    assert "partition.strategy: unknown value 'optimol': did you mean 'optimal'?" in done.stderr


def test_what_cannot_be_cut_along_time_is_said(config):
    done = run(config, "model=tests.helpers.small_lm:late", "pipeline.time_segment=2", "--plan")
    assert "nodes cannot run in the segment of their time step: " in done.stdout


@pytest.mark.slow
def test_a_memory_limit_that_is_too_small(config):
    done = run_alone(config, "partition.memory=10kB", "--plan")
    assert done.returncode == 3
    assert "more than the limit of 9.77 KiB; that is the smallest limit that works" in done.stderr


def test_training_lowers_the_perplexity(config):
    few = figures(config, "train.steps=1")["perplexity"]
    many = figures(config, "train.steps=40")["perplexity"]
    assert many < 0.7 * few


def test_plan_shows_partition_memory_and_timeline_and_runs_nothing(config):
    done = run(config, "--plan", "--json")
    assert done.returncode == 0, done.stderr
    for part in (
        "stage",
        "cpu(1)",
        "messages a micro-batch",
        "memory at the worst",
        "rank 1  F",
        "the predicted step is",
    ):
        assert part in done.stdout
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["predicted_step_seconds"] > 0
    assert "loss" not in found


@pytest.mark.slow
def test_a_plan_is_dumped_and_verified(config, tmp_path, capsys):
    """Of several buckets the largest, whose plan `--plan` prints."""
    for number, which in enumerate((config, write_bucketed(tmp_path))):
        path = tmp_path / f"plan{number}.jsonl"
        done = run(str(which), "--plan", f"--dump={path}", "partition.memory=10MB")
        assert done.returncode == 0, done.stderr
        assert runtime(["verify", str(path)]) == 0
        assert capsys.readouterr().out.startswith("verified: ")
        path.write_text(path.read_text().replace("0F0 ", "", 1))
        assert runtime(["verify", str(path)]) == 1
        assert "rank 0 lacks run 0F of micro-batch 0\n" in capsys.readouterr().out
        path.write_text("no plan")
        assert runtime(["verify", str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"symgraph: error: cannot verify {path}: ")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pipeline.schedul=gpipe"], "did you mean 'schedule'?"),
        (["pipeline.schedule=gpip"], "did you mean 'gpipe' or 'gpipe-2bp'?"),
        (["pipeline.micro_batches=7"], "micro_batches"),
        (["data.path=/nowhere"], "/nowhere"),
        (["group2ctx.layer0=cpu(3)"], "cpu(3)"),
        (["group2ctx={embed: cpu(0)}"], "is in group 'layer0', which group2ctx does not map"),
        (["devices=[gpu(0), gpu(1)]", "group2ctx={}"], "gpu(0) cannot be used"),
        (["args.hiden=8"], "'hiden'"),
        (["model=examples.lstm_lm:biuld"], "did you mean 'build'?"),
        (["model=examples.nothing:build"], "there is no module 'examples.nothing'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(config, overrides, message):
    done = run(config, *overrides)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr


def test_a_mistake_in_the_file_names_its_line(config):
    path = Path(config)
    path.write_text(path.read_text().replace("micro_batches", "micro_baches"))
    done = run(config)
    assert done.returncode == 2
    assert "config.yaml:6: pipeline.micro_baches" in done.stderr
    assert "did you mean 'micro_batches'" in done.stderr


def test_a_mistake_in_the_arguments_is_one_line_and_status_2():
    done = run("--pln")
    assert (done.returncode, done.stdout) == (2, "")
    told = "symgraph: error: unrecognized arguments: --pln (see python -m symgraph.run --help)"
    assert done.stderr == f"{told}\n"


def without_reader(*arguments: str) -> subprocess.CompletedProcess[str]:
    """With a pipe for stdout that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout:
        return subprocess.run(
            command(*arguments),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=120,
            check=False,
        )


@pytest.mark.slow
def test_what_is_printed_may_be_cut_off(config):
    """`--plan | head` ended with a traceback."""
    one = ["--measure-machine", "devices=[cpu(0)]"]
    for arguments in (["--keys"], [config, "--plan"], one):
        done = without_reader(*arguments)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_training_that_nobody_reads_ends_with_one_line(config):
    """`symgraph train CONFIG | head` named flight records, as if a rank had failed."""
    done = without_reader(config)
    told = "symgraph: error: nobody reads the output any more, so the run ends here\n"
    assert (done.returncode, done.stderr) == (141, told)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line(config):
    full = "symgraph: error: No space left on device\n"
    with open("/dev/full", "w") as stdout:
        done = subprocess.run(
            command("--keys"),
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            timeout=120,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, full)
    done = run(config, "--log=/dev/full")
    told = "symgraph: error: cannot write the log /dev/full: No space left on device\n"
    lines = done.stderr.splitlines(keepends=True)
    assert (done.returncode, lines[0], len(lines)) == (1, told, 2)
    assert lines[1].startswith("symgraph: flight records: ")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_no_mistake_of_the_command_line(config):
    """`plan --dump` ended with status 2, as if the path were of no use."""
    done = run(config, "--plan", "--dump=/dev/full")
    told = "symgraph: error: cannot write --dump /dev/full: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, told)


def test_text_without_a_held_out_part(config, tmp_path):
    (tmp_path / "none.txt").write_text("")
    done = run(config, f"data.valid_path={tmp_path / 'none.txt'}")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"symgraph: error: the held-out part of text .* has no words\n", done.stderr
    )
    (tmp_path / "few.txt").write_text("w1 w2\n")
    done = run(config, f"data.valid_path={tmp_path / 'few.txt'}")
    assert done.returncode == 2
    assert "error: the held-out text: 3 tokens do not fill one batch" in done.stderr


def test_sentences_without_words(tmp_path):
    config = write_bucketed(tmp_path)
    (tmp_path / "lines.txt").write_text("\n" * 400)
    done = run(str(config))
    told = "symgraph: error: the training text: there are no sentences\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_text_from_a_device(config):
    """It was no file, so "no such file"; and /dev/zero has no end."""
    done = run(config, "data.valid_path=/dev/null")
    assert (done.returncode, done.stderr) == (
        2,
        "symgraph: error: /dev/null: a device, not a text\n",
    )


def test_missing_config_file():
    done = run_alone("nothing.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing.yaml" in done.stderr


def test_no_config_says_what_to_type():
    done = run()
    assert done.returncode == 2
    assert "examples/lstm_lm.yaml" in done.stderr


@pytest.mark.slow
def test_diverged_training_is_a_failure_with_one_line(config):
    done = run_alone(config, "train.learning_rate=1e30", "train.clip_global_norm=null")
    assert done.returncode == 1
    assert "diverged" in done.stderr


def test_keys_lists_every_key_with_its_meaning():
    done = run("--keys")
    assert done.returncode == 0
    assert "pipeline.micro_batches" in done.stdout
    assert "Number of parts that a batch is split into; auto: the shortest" in done.stdout


@pytest.mark.slow
def test_interrupt_ends_it_cleanly(config):
    with subprocess.Popen(
        command(config, "train.steps=1000000"),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step"):
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines() == ["symgraph: interrupted"]


def test_a_log_has_a_line_for_every_step_and_goes_on(config, tmp_path):
    log = tmp_path / "log.jsonl"
    run_of = [config, f"--log={log}", f"checkpoint.directory={tmp_path / 'runs'}"]
    events = tmp_path / "events"
    final = figures(*run_of, f"--tensorboard={events}")
    (written,) = events.iterdir()
    assert written.read_bytes().count(b"tokens_per_second") == 7
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 8))
    assert [line["tokens"] for line in steps] == [30 * n for n in range(1, 8)]
    assert steps[-1]["loss"] == final["train_loss"]
    held_out = {f"held_out_{name}": final[name] for name in ("loss", "perplexity")}
    assert lines[-1] == {"step": 7, **held_out}
    figures(*run_of, "train.steps=9")
    more = [json.loads(line) for line in log.read_text().splitlines()[len(lines) :]]
    assert [line["step"] for line in more if "loss" in line] == [8, 9]


def test_counts_of_a_run_that_goes_on_fit_each_other(config, tmp_path):
    """Samples were those of all runs, their pace and seconds those of this one."""
    run_of = [config, f"checkpoint.directory={tmp_path / 'runs'}"]
    first = figures(*run_of)
    assert (first["steps_this_run"], first["tokens_this_run"]) == (7, 210)
    done = run(*run_of, "train.steps=9", "--json")
    found = json.loads(done.stdout)
    assert [found[k] for k in ("steps", "steps_this_run", "tokens", "tokens_this_run")] == [
        *(9, 2, 270, 60)
    ]
    pace = found["tokens_this_run"] / found["seconds"]
    assert found["tokens_per_second"] == pytest.approx(pace)
    assert re.search(r"steps +9, 2 of them in this run\n", done.stderr)
    assert re.search(r"tokens +270, 60 of them in this run\n", done.stderr)


@pytest.mark.slow
def test_a_run_with_nothing_left_says_so(config, tmp_path):
    """It showed `step 7/5`, 0 tokens, stages of 0 µs and a bubble of 0 %."""
    run_of = [config, f"checkpoint.directory={tmp_path / 'runs'}"]
    want = figures(*run_of)
    done = run(*run_of, "train.steps=5", "--json")
    assert done.returncode == 0
    said = "nothing left to train: the checkpoint of step 7 is at or beyond train.steps=5\n"
    assert said in done.stderr
    assert "7/5" not in done.stderr
    assert "time a step" not in done.stderr
    rows = [line.split("  ")[1] for line in done.stderr.partition("summary\n")[2].splitlines()]
    assert rows == ["held-out loss", "held-out perplexity", "steps", "tokens"]
    found = json.loads(done.stdout)
    assert [found[k] for k in ("loss", "steps", "tokens")] == [want["loss"], 7, 210]
    assert [found[k] for k in ("steps_this_run", "tokens_this_run", "seconds")] == [0, 0, 0.0]
    of_steps = ("tokens_per_second", "step_seconds", "predicted_step_seconds", "bubble_fraction")
    assert [found[k] for k in of_steps] == [None] * 4
    for _ in range(2):
        done = run(*run_of, "train.epochs=1", "train.steps=null")
    assert "the checkpoint of step 51 is at or beyond train.epochs=1 (51 steps)\n" in done.stdout


def of_functions(folder: Path, *overrides: str) -> list[str]:
    """Arguments of a run of four steps on batches of the functions of nets.py."""
    (folder / "nets.py").write_text(Path(nets.__file__).read_text(encoding="utf-8"))
    path = folder / "functions.yaml"
    path.write_text(
        "model: nets.py:build\n"
        "data: {function: nets.py:one_nan, valid: nets.py:held_out, batch_size: 16}\n"
        "train: {steps: 4, on_nan: skip}\n"
    )
    return [str(path), *overrides]


def test_updates_that_were_left_out_are_counted_and_not_in_the_loss(tmp_path):
    """The last line said `loss nan`, and only --json that an update was left out."""
    done = run(*of_functions(tmp_path))
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 4/4  loss \d", done.stdout)
    assert re.search(r"\n  updates left out +1\n", done.stdout)
    assert "left out" not in run(*of_functions(tmp_path, "train.steps=2")).stdout


def test_held_out_data_that_do_not_fit_are_refused_before_the_log_is_begun(tmp_path):
    """All of the training was lost, as they were read after it."""
    log = tmp_path / "log.jsonl"
    log.write_text("{}\n")
    done = run(*of_functions(tmp_path, "data.valid=nets.py:misnamed"), f"--log={log}")
    assert done.returncode == 2
    assert "nets.py:misnamed has 'dta', but the network has no such input" in done.stderr
    assert "step 1" not in done.stdout
    assert log.read_text() == "{}\n"


@pytest.mark.parametrize("saves", [True, False])
def test_an_evaluation_that_fails_comes_after_the_summary(tmp_path, saves):
    """The steps that had been made were not said, nor whether their weights were saved."""
    saved = tmp_path / "saved"
    more = [f"checkpoint.directory={saved}"] if saves else []
    done = run(*of_functions(tmp_path, "data.valid=nets.py:unknown_class", *more))
    assert done.returncode == 1
    assert "label 7.0 is outside" in done.stderr
    assert re.search(r"\n  loss of the last step +\d", done.stdout)
    assert re.search(r"\n  steps +4\n", done.stdout)
    where = f"checkpoint {saved}/step-00000004" if saves else "nothing was saved, as the config has"
    assert f"training has ended, its evaluation failed; {where}" in done.stdout
    assert (saved / "step-00000004").is_dir() == saves


@pytest.mark.parametrize("mode", ["--plan", "--profile"])
def test_an_unknown_metric_is_refused_whatever_is_done(config, mode):
    """`symgraph plan` let it through."""
    done = run(config, "evaluate.metrics=[acuracy]", mode)
    assert done.returncode == 2
    assert "evaluate.metrics: unknown metric 'acuracy': did you mean 'accuracy'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log=README.md/x"], "cannot write the log README.md/x: Not a directory"),
        (["--tensorboard=README.md"], "cannot write events to README.md: Not a directory"),
        (["--log=x", "--measure-machine"], "--log is for training; leave out --measure-machine"),
        (["--log=x", "--plan"], "--log is for training; leave out --plan"),
        (["--dump=x", "--profile"], "--dump goes with --plan; add that"),
        (
            ["--dump=README.md/x", "--plan"],
            "cannot write --dump README.md/x: Not a directory",
        ),
        (["--tensorboard=x", "--profile"], "--tensorboard is for training; leave out --profile"),
    ],
)
def test_logs_that_cannot_be_written(config, arguments, message):
    done = run(config, *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"symgraph: error: {message}"]
