import pytest
from pydantic import ValidationError

from runtime.training.job import rules_of
from symgraph.app.config import Config, key_help, load_config
from symgraph.core.errors import ConfigError

SCHEDULES = ("gpipe", "1f1b")

GOOD = """\
model: examples.lstm_lm:build
args: {layers: 4, hidden: 200, tied: false}

data:
  kind: stdlib_text
  batch_size: 64
  sequence_length: 35
devices: [cpu(0), cpu(1)]
group2ctx:
  embed: cpu(0)
  decode: cpu(1)
pipeline: {schedule: gpipe, micro_batches: 4}
train:
  learning_rate: 1
  clip_global_norm: 5.0
  epochs: 1
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text, *overrides):
        path = tmp_path / "run.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config("run.yaml", overrides, schedules=SCHEDULES)

    return load


def refusal(load, text, *overrides):
    """The one line that a config is refused with."""
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- what is right ----------------------------------------------------------------------------


def test_good_config_with_its_defaults(load):
    config = load(GOOD)
    assert config.model == "examples.lstm_lm:build"
    assert config.args == {"layers": 4, "hidden": 200, "tied": False}
    assert (config.data.batch_size, config.data.sequence_length) == (64, 35)
    assert config.devices == ("cpu(0)", "cpu(1)")
    assert config.group2ctx == {"embed": "cpu(0)", "decode": "cpu(1)"}
    assert (config.pipeline.schedule, config.pipeline.micro_batches) == ("gpipe", 4)
    assert config.train.base_rate == 1.0
    assert config.train.clip_global_norm == 5.0
    assert config.data.vocab == 10_000
    assert config.evaluate.every is None
    assert (config.transport, config.blas_threads) == ("auto", "auto")


def test_config_is_frozen(load):
    config = load(GOOD)
    with pytest.raises(ValidationError, match="frozen"):
        config.timeout = 3.0
    with pytest.raises(ValidationError, match="frozen"):
        config.train.seed = 3


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("train.lr_schedule={kind: multi_factor, step: [10, 20], factor: 0.5}",),
        ("train.weight_decay=1e-5", "blas_threads=2", "train.seconds=90"),
        ("partition.constraints=[{at_most: 2}, {not_on: {a: cpu(0)}}, {apart: [a, 'b*']}]",),
        ('args.name="1e3"', 'args.other="12"'),  # text that PyYAML alone writes as a number of ours
    ],
)
def test_yaml_round_trip(load, overrides):
    config = load(GOOD, *overrides)
    assert load(config.to_yaml()) == config


def test_numbers_without_a_point_are_numbers(load):
    assert load(GOOD, "train.weight_decay=1e-4").train.weight_decay == 1e-4
    assert load(GOOD.replace("rate: 1", "rate: 2E+1")).train.learning_rate == 20.0


def test_length_of_rows_says_how_many_there_are(load):
    assert load(GOOD, "partition.model_axis=1").partition.data_axis == 2
    assert load(GOOD, "partition.model_axis=3").partition.data_axis is None


def test_numbers_with_a_colon_are_text(load):
    """To YAML 1.1, 54:46 is the number 3286, and 1:30.5 is 90.5."""
    assert load(GOOD, "partition.shards={decode: 54:46}").partition.shards == {"decode": "54:46"}
    assert load(GOOD, "args.time=1:30.5").args["time"] == "1:30.5"


@pytest.mark.parametrize(
    ("value", "meaning", "remedy"),
    [
        ("on", "true", ", or write true"),
        ("No", "false", ", or write false"),
        ("010", "8", ", or write 8"),
        ("-0_7", "-7", ", or write -7"),
        ("2026-01-02", "a date", ""),
    ],
)
def test_values_that_readers_of_yaml_disagree_on_need_quotes(load, value, meaning, remedy):
    assert refusal(load, GOOD, f"args.x={value}") == (
        f"override 'args.x={value}': args.x: {value!r} is {meaning} to some readers of YAML and "
        f"not to others: put text in quotes{remedy}"
    )
    assert load(GOOD, f"args.x='{value}'").args["x"] == value


def test_keys_are_text_as_written(load):
    text = GOOD.replace("embed:", "1:").replace("decode:", "on:")
    assert load(text).group2ctx == {"1": "cpu(0)", "on": "cpu(1)"}


def test_anchors_and_merge_keys(load):
    text = GOOD.replace("train:\n", "train:\n  <<: {seed: 7, learning_rate: 3}\n")
    config = load(text)
    assert (config.train.seed, config.train.learning_rate) == (7, 1)


@pytest.mark.parametrize(
    ("limits", "epochs"),
    [
        ({}, 1),
        ({"steps": 5}, None),
        ({"seconds": 2.0}, None),
        ({"epochs": 3, "steps": 5}, 3),
    ],
)
def test_one_epoch_is_the_limit_if_there_is_no_other(load, limits, epochs):
    overrides = [f"train.{key}={value}" for key, value in limits.items()]
    config = load(GOOD.replace("  epochs: 1\n", ""), *overrides)
    assert config.train.epoch_limit == epochs


def test_usual_learning_rate_of_an_optimizer(load):
    text = GOOD.replace("  learning_rate: 1\n", "")
    assert load(text).train.base_rate == 0.01
    assert load(text, "train.optimizer=adam").train.base_rate == 0.001


@pytest.mark.parametrize(
    "kind",
    [
        "factor, step: 10, factor: 0.5",
        "multi_factor, step: [10, 20], factor: 0.5",
        "poly, max_update: 10, pwr: 1",
        "cosine, max_update: 10, final_lr: 0.1, warmup_steps: 3",
    ],
)
def test_learning_rate_schedules(load, kind):
    schedule = load(GOOD, f"train.lr_schedule={{kind: {kind}}}").train.lr_schedule
    assert schedule.kind == kind.split(",")[0]


def test_every_key_has_a_help_text():
    rows = list(key_help())
    assert all(meaning.endswith(".") for _, _, meaning in rows)
    help_of = {key: (default, meaning) for key, default, meaning in rows}
    assert help_of["model"][0] == "required"
    assert help_of["devices"][0] == "[cpu(0)]"
    assert help_of["train.seed"] == ("1", "Seed of initial weights and dropout.")
    assert {key.split(".")[0] for key in help_of} == set(Config.model_fields)


# -- overrides --------------------------------------------------------------------------------


def test_overrides_replace_add_and_parse_yaml(load):
    config = load(
        GOOD,
        "train.steps=7",
        "train.epochs=",
        "devices=[cpu(0), cpu(2)]",
        "args.name=a=b",
        "group2ctx={embed: cpu(2)}",
        "evaluate.every=50",
        "args.deep.er=[1, 2]",
    )
    assert (config.train.steps, config.train.epochs) == (7, None)
    assert config.devices == ("cpu(0)", "cpu(2)")
    assert config.group2ctx == {"embed": "cpu(2)"}
    assert config.evaluate.every == 50
    assert config.args["name"] == "a=b"
    assert config.args["deep"] == {"er": [1, 2]}
    assert config.args["layers"] == 4


def test_an_override_mends_the_file(load):
    assert load(GOOD.replace("64", "many"), "data.batch_size=8").data.batch_size == 8


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "train.steps=many",
            "override 'train.steps=many': train.steps: expected a whole number, got",
        ),
        (
            "train.setps=3",
            "override 'train.setps=3': train.setps: unknown key: did you mean 'steps'",
        ),
        ("trian.steps=3", "override 'trian.steps=3': trian: unknown key: did you mean 'train'"),
        (
            "devices=[cpu(0), cpu(0)]",
            "override 'devices=[cpu(0), cpu(0)]': devices[1]: cpu(0) is list",
        ),
        (
            "train={sede: 1}",
            "override 'train={sede: 1}': train.sede: unknown key: did you mean 'seed'",
        ),
        ("train.steps", "override 'train.steps': expected key.path=value"),
        ("=3", "override '=3': expected key.path=value"),
        ("train..steps=3", "override 'train..steps=3': expected key.path=value"),
        ("args={a: 1", "override 'args={a: 1': not valid YAML: while parsing a flow mapping"),
        ("args={a: 1, a: 2}", "override 'args={a: 1, a: 2}': args.a: this key is given twice"),
        (
            "data.kind.x=3",
            "override 'data.kind.x=3': data.kind is 'stdlib_text' (run.yaml:5), not a ",
        ),
    ],
)
def test_mistakes_in_overrides_name_the_override(load, override, message):
    assert refusal(load, GOOD, override).startswith(message)


def test_mistakes_in_the_file_come_before_those_in_overrides(load):
    text = GOOD.replace("epochs: 1", "epochs: 0")
    assert refusal(load, text, "data.vocab=x").startswith("run.yaml:16: train.epochs: must be at ")
    assert refusal(load, GOOD, "data.vocab=x", "timeout=x").startswith("override 'data.vocab=x'")


def test_how_the_batch_flows(load):
    more = "pipeline: {schedule: auto, micro_batches: 4, time_segment: auto, recompute: [2, 0, 2]}"
    text = GOOD.replace("pipeline: {schedule: gpipe, micro_batches: 4}", more)
    config = load(text + "partition: {memory: 1.5GiB}\n")
    assert config.partition.memory == 3 << 29
    pipeline = config.pipeline
    assert (pipeline.schedule, pipeline.time_segment) == ("auto", "auto")
    assert pipeline.recompute == (0, 2)
    assert load(text, "pipeline.recompute=all").pipeline.recompute == "all"
    assert load(text, "pipeline.time_segment=5").pipeline.time_segment == 5


def test_a_schedule_in_a_file(load, tmp_path):
    (tmp_path / "mine.csv").write_text("0F0\n")
    assert load(GOOD, "pipeline.schedule=mine.csv").pipeline.schedule == "mine.csv"


# -- mistakes in one key ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "pipeline:",
            "pipline:",
            "run.yaml:12: pipline: unknown key: did you mean 'pipeline'? (known",
        ),
        (
            "epochs: 1",
            "epoch: 1",
            "run.yaml:16: train.epoch: unknown key: did you mean 'epochs'? (kno",
        ),
        (
            "epochs: 1",
            "data: 1",
            "run.yaml:16: train.data: unknown key here: it belongs at the top le",
        ),
        (
            "devices:",
            "vocab: 9\ndevices:",
            "run.yaml:8: vocab: unknown key here: it belongs under 'da",
        ),
        (
            "devices:",
            "partitions: {}\ndevices:",
            "run.yaml:8: partitions: unknown key: did you mean ",
        ),
        (
            "size: 64",
            "size: many",
            "run.yaml:6: data.batch_size: expected a whole number, got 'many'",
        ),
        (
            "size: 64",
            "size: 64.0",
            "run.yaml:6: data.batch_size: expected a whole number, got 64.0",
        ),
        (
            "size: 64",
            "size: true",
            "run.yaml:6: data.batch_size: expected a whole number, got true",
        ),
        ("size: 64", "size:", "run.yaml:6: data.batch_size: expected a whole number, got null"),
        ("size: 64", "size: 0", "run.yaml:6: data.batch_size: must be at least 1, got 0"),
        (
            "size: 64",
            "size: 9223372036854775808",
            "run.yaml:6: data.batch_size: must be at most 9.22337e+18, got 9223372036854775808",
        ),
        (
            "size: 64",
            "size: !!bool no way",
            "run.yaml:6: data.batch_size: 'no way' is not a valid va",
        ),
        (
            "size: 64",
            "size: !!timestamp now",
            "run.yaml:6: data.batch_size: 'now' is not a valid val",
        ),
        ("gpipe,", "gpipe, order: back,", "run.yaml:12: pipeline.order: unknown value 'back': kno"),
        (
            "gpipe,",
            "1f1b, order: forward,",
            "run.yaml:12: pipeline.order: applies to the schedule gpip",
        ),
        ("gpipe,", "zb-9,", "run.yaml:12: pipeline.schedule: unknown value 'zb-9': "),
        ("gpipe,", "a.csv,", "run.yaml:12: pipeline.schedule: no such file: a.csv"),
        ("gpipe,", "gpipe, time_segment: 0,", "run.yaml:12: pipeline.time_segment: expected null"),
        ("gpipe,", "gpipe, recompute: some,", "run.yaml:12: pipeline.recompute: expected none"),
        ("gpipe,", "gpipe, recompute: [-1],", "run.yaml:12: pipeline.recompute: expected none, "),
        (
            "devices:",
            "partition: {memory: 4X}\ndevices:",
            "run.yaml:8: partition.memory: expected byt",
        ),
        (
            "rate: 1",
            "rate: -0.5",
            "run.yaml:14: train.learning_rate: must be more than 0, got -0.5",
        ),
        (
            "rate: 1",
            "rate: .nan",
            "run.yaml:14: train.learning_rate: expected a finite number, got na",
        ),
        (
            "rate: 1",
            "rate: fast",
            "run.yaml:14: train.learning_rate: expected a number, got 'fast'",
        ),
        ("epochs: 1", "momentum: 1", "run.yaml:16: train.momentum: must be less than 1, got 1"),
        (
            "epochs: 1",
            "dtype: float23",
            "run.yaml:16: train.dtype: unknown value 'float23': did you m",
        ),
        (
            "epochs: 1",
            "optimizer: adan",
            "run.yaml:16: train.optimizer: unknown value 'adan': did you",
        ),
        (
            "kind: std",
            "kind: sdt",
            "run.yaml:5: data.kind: unknown value 'sdtlib_text': did you mean ",
        ),
        (
            "gpipe",
            "guipe",
            "run.yaml:12: pipeline.schedule: unknown value 'guipe': did you mean 'gpip",
        ),
        (
            "examples.lstm_lm:build",
            "lstm_lm",
            "run.yaml:1: model: expected package.module:function, f",
        ),
        (
            "examples.lstm_lm:build",
            "a-b:c",
            "run.yaml:1: model: expected package.module:function, file",
        ),
        ("examples.lstm_lm:build", "3", "run.yaml:1: model: expected text, got 3"),
        (
            "args: {layers: 4, hidden: 200, tied: false}",
            "args: 3",
            "run.yaml:2: args: expected keys a",
        ),
        ("train:", "timeout: 0\ntrain:", "run.yaml:13: timeout: must be more than 0, got 0"),
        (
            "train:",
            "transport: mpo\ntrain:",
            "run.yaml:13: transport: unknown value 'mpo': did you me",
        ),
        (
            "train:",
            "blas_threads: 0\ntrain:",
            "run.yaml:13: blas_threads: expected auto or a whole nu",
        ),
        (
            "cpu(0), cpu(1)",
            "cpu(0), cpu1",
            "run.yaml:8: devices[1]: 'cpu1' is not a device: write cpu",
        ),
        ("[cpu(0), cpu(1)]", "cpu(0)", "run.yaml:8: devices: expected a list, got 'cpu(0)'"),
        (
            "[cpu(0), cpu(1)]",
            "[]",
            "run.yaml:8: devices: needs at least 1 entry, got an empty list",
        ),
        (
            "embed: cpu(0)",
            "embed: tpu(0)",
            "run.yaml:10: group2ctx.embed: 'tpu(0)' is not a device: w",
        ),
    ],
)
def test_mistake_in_one_key(load, old, new, message):
    assert old in GOOD
    assert refusal(load, GOOD.replace(old, new)).startswith(message)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("3", "train.lr_schedule: expected keys and values, got 3"),
        ("{step: 3}", "train.lr_schedule.kind: required key is missing"),
        ("{kind: cosin}", "train.lr_schedule.kind: unknown value 'cosin': did you mean 'cosine'?"),
        ("{kind: cosine}", "train.lr_schedule.max_update: required key is missing: Step at which"),
        (
            "{kind: factor, step: 3, factro: 1}",
            "train.lr_schedule.factro: unknown key: did you mean '",
        ),
        (
            "{kind: factor, step: 3, factor: 2}",
            "train.lr_schedule.factor: must be at most 1, got 2",
        ),
        (
            "{kind: multi_factor, step: [3, a], factor: 1}",
            "train.lr_schedule.step[1]: expected a whol",
        ),
        (
            "{kind: multi_factor, step: [3, 2], factor: 1}",
            "train.lr_schedule: MultiFactorScheduler: s",
        ),
        (
            "{kind: cosine, max_update: 5, warmup_steps: 9}",
            "train.lr_schedule: CosineScheduler: max_u",
        ),
    ],
)
def test_mistakes_in_a_learning_rate_schedule(load, schedule, message):
    text = GOOD + f"  lr_schedule: {schedule}\n"
    assert refusal(load, text).startswith(f"run.yaml:17: {message}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "model: examples.lstm_lm:build\n",
            "run.yaml:1: model: required key is missing: Python func",
        ),
        ("  batch_size: 64\n", "run.yaml:4: data.batch_size: required key is missing: Sequences p"),
    ],
)
def test_missing_key(load, line, message):
    # the line is that of the section which lacks the key; keep the line count
    assert refusal(load, GOOD.replace(line, "\n")).startswith(message)


def test_a_misspelt_required_key_is_named_rather_than_the_missing_one(load):
    assert "data.batchsize: unknown key: did you mean 'batch_size'" in refusal(
        load, GOOD.replace("batch_size", "batchsize")
    )


def test_any_schedule_goes_if_none_are_given(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(GOOD.replace("gpipe", "zigzag"))
    assert load_config(str(path)).pipeline.schedule == "zigzag"


# -- mistakes between keys --------------------------------------------------------------------


def test_constraints_are_read_in_their_short_forms(load):
    text = "[{apart: [a, b]}, {at_most: 2}, {pin: {a: gpu(0), b: cpu(1)}}, {split: {a: none}}]"
    config = load(GOOD, "devices=[gpu(0), cpu(0), cpu(1)]", f"partition.constraints={text}")
    assert config.partition.constraints == (
        {"apart": ["a", "b"]},
        {"at_most": {"*": 2}},
        {"pin": {"a": "gpu(0)", "b": "cpu(1)"}},
        {"split": {"a": "none"}},
    )
    assert [str(rule) for rule in rules_of(config)] == [
        "apart: [a, b]",
        "at_most: {*: 2}",
        "pin: {a: gpu(0)}",
        "pin: {b: cpu(1)}",
        "split: {a: none}",
    ]


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        ("apart", "[0]: expected one constraint, such as {apart: [a, b]}, got 'apart'"),
        ("{apart: [a]}", "[0]: apart: expected two names or more, such as [a, b]; got a list"),
        ("{apat: [a, b]}", "[0]: unknown constraint 'apat': did you mean 'apart'"),
        ("{pin: [a]}", "[0]: pin: expected names with values, such as {embed: cpu(0)}; got a list"),
        ("{pin: {a: cpu}}", "[0]: pin: 'cpu' is not a device"),
        ("{pin: {a: cpu(2)}}", "[0]: cpu(2) is not in devices: did you mean 'cpu("),
        ("{not_on: {a: [cpu(0), cpu(3)]}}", "[0]: cpu(3) is not in devices: did you mean"),
        ("{at_most: {a: 0}}", "[0]: at_most: expected a number of devices, got 0"),
        ("{same: {a: 1}}", "[0]: same: expected a name, got 1"),
        ("{split: {a: rows}}", "[0]: split: expected samples, classes, none, got 'rows'"),
    ],
)
def test_mistakes_in_constraints(load, constraint, message):
    refused = refusal(load, GOOD, f"partition.constraints=[{constraint}]")
    assert f"partition.constraints{message}" in refused


def test_device_listed_twice(load):
    text = GOOD.replace("[cpu(0), cpu(1)]", "\n- cpu(0)\n- cpu(1)\n- cpu(00)")
    assert refusal(load, text) == "run.yaml:11: devices[2]: cpu(0) is listed twice"


def test_group_on_a_device_that_is_not_listed(load):
    assert refusal(load, GOOD.replace("decode: cpu(1)", "decode: gpu(1)")) == (
        "run.yaml:11: group2ctx.decode: group 'decode' is on gpu(1), which is not in devices:"
        " did you mean 'cpu(1)' or 'cpu(0)'? (known: 'cpu(0)', 'cpu(1)')"
    )


def test_one_device_has_all_groups(load):
    """`devices=[cpu(0)]` alone was refused, because groups were still on cpu(1)."""
    assert load(GOOD, "devices=[cpu(0)]").group2ctx == {"embed": "cpu(0)", "decode": "cpu(0)"}
    shards = "group2ctx.decode=[cpu(0), cpu(1)]"
    assert load(GOOD, "devices=[gpu(2)]", shards).group2ctx["decode"] == "gpu(2)"
    text = GOOD.replace("[cpu(0), cpu(1)]", "[cpu(0)]").replace("decode: cpu(1)", "decode: tpu(1)")
    assert "'tpu(1)' is not a device" in refusal(load, text)
    groups = "group2ctx={embed: cpu(0)}"
    without = GOOD.replace("devices: [cpu(0), cpu(1)]\n", "")
    assert load(without, groups).devices == ("cpu(0)",)


def test_without_the_key_devices_are_those_of_the_groups(load):
    without = GOOD.replace("devices: [cpu(0), cpu(1)]\n", "")
    assert load(without).devices == ("cpu(0)", "cpu(1)")
    assert load(without, "group2ctx={a: gpu(0), b: [cpu(11), cpu(2)]}").devices == (
        "cpu(2)",
        "cpu(11)",
        "gpu(0)",
    )
    assert load(without, "group2ctx={}").devices == ("cpu(0)",)
    assert "'cpu3' is not a device" in refusal(load, without.replace("cpu(1)", "cpu3"))


def test_more_micro_batches_than_samples(load):
    message = refusal(load, GOOD.replace("micro_batches: 4", "micro_batches: 65"))
    assert message == "run.yaml:12: pipeline.micro_batches: 65 is more than data.batch_size (64)"


def test_micro_batches_by_time_need_a_number(load):
    assert (
        load(GOOD.replace("micro_batches: 4", "micro_batches: auto")).pipeline.micro_batches
        == "auto"
    )
    message = refusal(
        load,
        GOOD.replace("micro_batches: 4", "micro_batches: auto"),
        "data.micro_batches=by_time",
        "data.buckets=[10]",
        "data.sequence_length=null",
    )
    assert "pipeline.micro_batches: data.micro_batches: by_time needs a number" in message


def test_momentum_of_an_optimizer_without_one(load):
    text = GOOD.replace("epochs: 1", "momentum: 0.9\n  optimizer: adam")
    assert refusal(load, text).startswith("run.yaml:16: train.momentum: optimizer adam has no mom")
    assert load(text.replace("adam", "nag")).train.momentum == 0.9


def test_text_needs_a_path_that_is_a_file(load, tmp_path):
    text = GOOD.replace("stdlib_text", "text")
    assert refusal(load, text).startswith("run.yaml:4: data.path: required key is missing: Train")
    there = text.replace("  batch", "  path: words.txt\n  batch")
    assert refusal(load, there) == "run.yaml:6: data.path: no such file: words.txt"
    (tmp_path / "words.txt").mkdir()
    assert "data.path: is a folder, not a file: words.txt" in refusal(load, there)
    (tmp_path / "words.txt").rmdir()
    (tmp_path / "words.txt").write_text("a\n")
    assert load(there).data.path == "words.txt"
    assert "data.valid_path: no such file: v" in refusal(load, there, "data.valid_path=v")


def test_the_machine_is_a_file(load, tmp_path):
    text = GOOD.replace("pipeline:", "machine: big.yaml\npipeline:")
    assert refusal(load, text) == "run.yaml:12: machine: no such file: big.yaml"
    assert refusal(load, text.replace("big.yaml", "3")) == (
        "run.yaml:12: machine: expected text, got 3"
    )
    (tmp_path / "big.yaml").write_text("devices: {}\n")
    assert load(text).machine == "big.yaml"
    assert load(GOOD).machine is None


def test_stdlib_text_reads_no_file(load):
    message = refusal(load, GOOD.replace("  batch", "  path: words.txt\n  batch"))
    assert message.startswith(
        "run.yaml:6: data.path: unknown key for this kind: it belongs to kind arrays or text"
    )


# -- mistakes in the file ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "run.yaml:1: expected keys and values, got an empty file"),
        ("# nothing\n", "run.yaml:1: expected keys and values, got an empty file"),
        ("- a\n", "run.yaml:1: expected keys and values, got a list"),
        ("a\n", "run.yaml:1: expected keys and values, got 'a'"),
        (
            "a: 1\nb: {c: 1\nd: 2\n",
            "run.yaml:3: not valid YAML: while parsing a flow mapping, expecte",
        ),
        ("a: 1\n\tb: 2\n", "run.yaml:2: not valid YAML: "),
        ("a: 1\nb: *x\n", "run.yaml:2: not valid YAML: found undefined alias 'x'"),
        ("a: 1\n---\nb: 2\n", "run.yaml:2: not valid YAML: expected a single document"),
        ("a: 1\nb: !!python/name:os.system x\n", "run.yaml:2: not valid YAML: could not determine"),
        (b"a: 1\nb: \xff\n", "run.yaml:2: not a config file: not UTF-8 text at byte 8"),
        ("a: 1\nb: \x07\n", "run.yaml:2: not valid YAML: character '\\x07' is not allowed"),
        ("a: &x {b: *x}\n", "run.yaml: nested too deeply, or an alias that holds itself"),
        ("[" * 5000, "run.yaml: nested too deeply, or an alias that holds itself"),
        (
            GOOD + "args: {day: 2020-13-01}\n",
            "run.yaml:17: args: this key is given twice, first at ru",
        ),
        (
            GOOD.replace("4,", "2020-13-01,"),
            "run.yaml:2: args.layers: '2020-13-01' is not a valid val",
        ),
        (GOOD.replace("layers:", "[layers]:"), "run.yaml:2: args: a key must be text, not a list"),
        (GOOD.replace("model:", "[model]:"), "run.yaml:1: a key must be text, not a list"),
    ],
)
def test_files_that_are_no_config(load, text, message):
    assert refusal(load, text).startswith(message)


def nine_of_nine(start, again):
    """A mapping of 9 keys, each of which names the one before it nine times by its alias."""
    levels = [f"a{i}: &a{i} {again.format(', '.join(9 * [f'*a{i - 1}']))}\n" for i in range(1, 9)]
    return f"a0: &a0 {start}\n" + "".join(levels)


def test_aliases_do_not_grow_without_limit(load):
    """Nine levels of nine took minutes and 4 GiB, before the first unknown key was named."""
    assert refusal(load, nine_of_nine("[1]", "[{}]")) == (
        "run.yaml:1: aliases add more than 100,000 values to the file"
    )
    assert refusal(load, nine_of_nine("{x: 1}", "{{<<: [{}]}}")).startswith("run.yaml:1: a0: unk")


def test_key_given_twice_in_a_section(load):
    assert refusal(load, GOOD + "  learning_rate: 2\n") == (
        "run.yaml:17: train.learning_rate: this key is given twice, first at run.yaml:14"
    )


def test_missing_config_file_and_a_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such config file$"):
        load_config(str(tmp_path / "nowhere.yaml"))
    with pytest.raises(ConfigError, match=r"cannot read this config file: Is a directory$"):
        load_config(str(tmp_path))


def test_of_several_mistakes_the_first_in_the_file_is_named(load):
    # one of each sort: type, group's device, schedule, duplicate; removed from the top down
    text = GOOD.replace("length: 35", "length: x").replace("embed: cpu(0)", "embed: cpu(9)")
    text = text.replace("gpipe", "guipe") + "  epochs: 2\n"
    assert refusal(load, text).startswith("run.yaml:7: data.sequence_length")
    text = text.replace("length: x", "length: 35")
    assert refusal(load, text).startswith("run.yaml:10: group2ctx.embed")
    text = text.replace("cpu(9)", "cpu(0)")
    assert refusal(load, text).startswith("run.yaml:12: pipeline.schedule")
    text = text.replace("guipe", "gpipe")
    assert refusal(load, text).startswith("run.yaml:17: train.epochs")
