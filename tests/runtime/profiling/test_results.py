"""Results: the command line's text, HTML, figures and columns are those of one object."""

from __future__ import annotations

import json
from functools import partial
from io import StringIO
from xml.etree import ElementTree

import numpy as np
import pytest

import runtime
import symgraph as sg
from runtime.frontends.cli import commands
from runtime.profiling.measurements import measure_profile
from runtime.profiling.report.result import Passage, Result
from runtime.profiling.trials.baseline import ONE, Gain
from runtime.profiling.trials.comparison import KEPT, Compared, Comparison
from runtime.profiling.trials.outcome import Outcome
from runtime.profiling.trials.profile_result import ProfileResult
from runtime.training.clusters import Clusters
from runtime.training.given import config_of
from symgraph.app.console import Console
from symgraph.core.errors import ConfigError, RunError
from tests.helpers.profiles import config, costs, small_profile
from tests.helpers.small_lm import write_config

NAMED = "<b>&amp;\"' a candidate"
STAGES = [
    {"rank": rank, "device": f"cpu({rank})", "peak_bytes_predicted": 9, "peak_bytes_measured": 9}
    for rank in range(2)
]
PAIR = {"first": sg.cpu(0), "second": sg.cpu(1)}


@pytest.fixture
def profiled(tmp_path) -> ProfileResult:
    summary = dict.fromkeys(KEPT) | {"stages": STAGES, "devices": ["cpu(0)", "cpu(1)"]}
    outcome = Outcome(small_profile(), summary)
    gain = Gain(["cpu(0)", "cpu(1)"], 1.0, "cpu(0)", 2.0, threads=1)
    return ProfileResult(config(tmp_path), outcome, gain)


@pytest.fixture
def compared(profiled) -> Comparison:
    one, two = (Compared(name, profiled.config, profiled.outcome) for name in (NAMED, "two"))
    return Comparison((one, two), profiled.gain)


def network() -> sg.Symbol:
    with sg.AttrScope(ctx_group="first"):
        x = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=8, name="fc1")
        x = sg.sym.Activation(x, act_type="tanh", name="tanh1")
    with sg.AttrScope(ctx_group="second"):
        label = sg.sym.Variable("label")
        x = sg.sym.FullyConnected(x, num_hidden=3, name="fc2")
        return sg.sym.SoftmaxOutput(x, label, name="softmax")


FEEDS = {
    "data": sg.Feed(sg.TensorType((8, 4), "float32"), 0),
    "label": sg.Feed(sg.TensorType((8,), "float32"), 0),
}


def planned(symbol: sg.Symbol, groups=PAIR, wrt=None, **options) -> runtime.Plan:
    given = {"micro_batches": 2, "schedule": "1f1b", "update": wrt is None} | options
    return runtime.plan(symbol, FEEDS, runtime.Options(groups, **given), wrt=wrt)


# -- one object for the command line and for Python ------------------------------------------------


@pytest.mark.parametrize("which", ["profiled", "compared"])
def test_the_command_line_prints_the_result(which, request, monkeypatch):
    result: Result = request.getfixturevalue(which)
    monkeypatch.setattr(commands, "measure_profile", lambda *args, **given: result)
    monkeypatch.setattr(commands, "compare", lambda *args, **given: result)
    stream = StringIO()
    with Clusters({}) as clusters:
        if isinstance(result, ProfileResult):
            figures = commands.profile(result.config, clusters, Console(stream))
        else:
            figures = commands.compare_all({}, clusters.of, Console(stream))
    assert stream.getvalue() == f"\n{result}\n"
    assert repr(result).startswith(
        f"<{type(result).__name__}: 2 devices: 2.00 times as fast as one"
    )
    assert figures == result.figures()
    assert json.loads(result.to_json()).keys() == figures.keys()


@pytest.mark.slow
def test_a_call_returns_what_the_command_line_prints(tmp_path, monkeypatch, capfd):
    """And it is quiet, unless it is told how to speak."""
    found = []

    def spy(*args, **given):
        found.append(measure_profile(*args, **given))
        return found[-1]

    monkeypatch.setattr(commands, "measure_profile", spy)
    path = write_config(tmp_path, "optimizer: sgd, learning_rate: 0.5, clip_global_norm: 5.0")
    overrides = [f"partition.costs={costs(tmp_path)}", "blas_threads=1"]
    stream, given = StringIO(), config(tmp_path)
    with Clusters({}) as clusters:
        figures = commands.profile(given, clusters, Console(stream), steps=2, baseline=False)
    said = []
    called = sg.profile(path, overrides, steps=2, baseline=False, progress=said.append)
    assert capfd.readouterr() == ("", "")
    assert type(called) is type(found[0])
    assert called.config == given
    assert stream.getvalue() == "\n".join([*said, "", str(found[0]), ""])
    assert called.figures().keys() == figures.keys()


# -- HTML, columns, files --------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["profiled", "compared"])
def test_html_is_well_formed_and_has_all_words_of_the_text(which, request):
    result: Result = request.getfixturevalue(which)
    tree = ElementTree.fromstring(result._repr_html_())
    shown = " ".join("".join(tree.itertext()).split())
    for passage in result.passages():
        for line in (*passage.lines, *passage.notes):
            assert " ".join(line.split()) in shown
    cells = {cell.text for tag in ("td", "th") for cell in tree.iter(tag)}
    assert cells >= {cell or None for p in result.passages() for row in p.table for cell in row}


def test_names_of_others_are_text_in_html(compared):
    tree = ElementTree.fromstring(compared._repr_html_())
    assert NAMED in {cell.text for cell in tree.iter("td")}
    assert list(tree.iter("b")) == []
    wild = Passage(["<script>\x1b[2J"], [["a\nb"], ["</table>"]], chart="</pre><i>")
    tree = ElementTree.fromstring(f"<div>{wild.html}</div>")
    assert {node.tag for node in tree.iter()} == {"div", "p", "table", "tr", "th", "td", "pre"}
    assert "\\x1b[2J" in "".join(tree.itertext())


@pytest.mark.parametrize("which", ["profiled", "compared"])
def test_the_columns_of_a_table_are_plain_and_equally_long(which, request):
    result: Result = request.getfixturevalue(which)
    for name in result.tables():
        columns = result.columns(name)
        assert len({len(values) for values in columns.values()}) == 1, name
        assert len(next(iter(columns.values()))) > 0
        assert json.loads(json.dumps(columns)) == columns
    assert result.columns() == result.columns(next(iter(result.tables())))
    with pytest.raises(ConfigError, match="no table 'rankz'; did you mean 'rank"):
        result.columns("rankz")


def test_columns_are_the_raw_values(profiled):
    rows = profiled.profile.operators
    assert profiled.columns()["seconds"] == [row.seconds for row in rows]
    assert profiled.columns("bodies")["key"] == [str(row.key) for row in profiled.profile.bodies]


def test_a_report_is_a_page(profiled, compared, tmp_path):
    pytest.importorskip("jinja2", reason="needs the extra `report`")
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    with pytest.raises(ConfigError, match="cannot write a report into /dev/null"):
        profiled.report("/dev/null")
    assert profiled.report(str(tmp_path / "new" / "one")).read_text().count("<html") == 1
    assert (tmp_path / "new" / "one" / "operators.csv").is_file()


# -- plans -----------------------------------------------------------------------------------------


def test_a_config_says_what_the_options_of_a_plan_say():
    options = {"strategy": "uniform", "memory": 1 << 20, "slots": 2, "clips": True}
    options["devices"] = (sg.cpu(0), sg.cpu(1))
    given = config_of(planned(network(), micro_batches=4, schedule="gpipe", **options))
    assert given.devices == ("cpu(0)", "cpu(1)")
    assert given.group2ctx == {"first": "cpu(0)", "second": "cpu(1)"}
    assert (given.pipeline.micro_batches, given.pipeline.schedule) == (4, "gpipe")
    assert (given.partition.strategy, given.partition.memory) == ("uniform", 1 << 20)
    assert given.train.optimizer == "adam"
    assert given.train.clip_global_norm
    assert "network:" not in given.to_yaml()
    symbol = network()
    same, other = (config_of(planned(symbol)) for _ in range(2))
    assert same == other
    assert same != config_of(planned(symbol, wrt=()))


@pytest.mark.slow
def test_a_plan_is_profiled_beside_one_device():
    found = sg.profile(planned(network()), steps=2)
    assert found.gain.device == "cpu(0)"
    assert found.profile.typical.record.plan.digest == planned(network()).digest
    assert str(found).startswith(found.gain.lines()[0])
    assert {"FullyConnected", "_softmax_output_grad"} & {*found.columns()["name"]}


@pytest.mark.slow
def test_a_plan_that_runs_forward_only_is_profiled():
    found = sg.profile(planned(network(), wrt=()), steps=2, baseline=False)
    assert json.loads(found.to_json())["train_loss"] is None
    assert {*found.columns("bodies")["key"]} == {"0F", "1F"}


@pytest.mark.slow
def test_two_placements_of_a_network_are_compared_with_one_baseline():
    symbol = network()
    back = {"first": sg.cpu(1), "second": sg.cpu(0)}
    plans = {"there": planned(symbol), "back": planned(symbol, back)}
    found = sg.compare(plans, steps=4)
    assert {*found.columns()["name"]} == {"there", "back", ONE}
    assert found.gain.name in plans
    placements = {c.name: c.outcome.summary["placement"] for c in found.ranking}
    assert placements["there"] == {"first": "cpu(0)", "second": "cpu(1)"}
    assert placements["back"] == {"first": "cpu(1)", "second": "cpu(0)"}


@pytest.mark.slow
def test_a_search_of_a_plan_ends_with_a_plan(tmp_path):
    found = sg.search(planned(network()), steps=4, seconds=2.0)
    assert found.plan.request.symbol.tojson() == network().tojson()
    assert any(name.endswith("as given") for name in found.columns()["name"])
    assert found.compared.ranking[0].name == found.best.name
    with pytest.raises(ConfigError, match="given in Python; use the result's `plan`"):
        found.write(str(tmp_path / "winner.yaml"))


@pytest.mark.parametrize("call", [sg.profile, sg.compare, sg.search])
def test_wrong_steps_and_overrides_are_named(call):
    """`steps=0` was a division by zero, and of one text each letter was an override."""
    for steps, wrong in {
        0: "steps is 0 but must be 1 or more",
        2.5: "2.5 but must be a whole",
    }.items():
        with pytest.raises(ConfigError, match=wrong):
            call("net.yaml", steps=steps)
    with pytest.raises(ConfigError, match=r"must be a list, such as \['train.seed=2'\]"):
        call("net.yaml", "train.seed=2")


@pytest.mark.parametrize("seconds", [float("nan"), -1, "60"])
def test_wrong_seconds_of_a_search_are_named(seconds):
    with pytest.raises(ConfigError, match=r"seconds is .* but must be a number, 0 or more"):
        sg.search("net.yaml", seconds=seconds)


def test_what_cannot_be_measured_is_one_error(tmp_path):
    with pytest.raises(TypeError, match=r"expected the path of a config, .* not Symbol"):
        sg.profile(network())
    with pytest.raises(ConfigError, match=r"overrides .* give its path"):
        sg.profile(planned(network()), ["pipeline.micro_batches=2"])
    with pytest.raises(ConfigError, match=r"cannot be read|no such|No such"):
        sg.profile(str(tmp_path / "none.yaml"))
    with pytest.raises(ConfigError, match="two candidates or more, not \\['a'\\]"):
        sg.compare({"a": planned(network())})
    heads = runtime.plan(network(), FEEDS, runtime.Options(PAIR), wrt=None, heads=True)
    with pytest.raises(ConfigError, match="gradients of its outputs"):
        sg.profile(heads)


# -- checkpoints -----------------------------------------------------------------------------------


def batch(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    data = rng.standard_normal((8, 4)).astype("float32")
    return {"data": data, "label": data[:, :3].argmax(axis=1).astype("float32")}


def trained(plan: runtime.Plan, steps: int, folder) -> dict[str, np.ndarray]:
    """The parameters after so many steps, counted from the newest checkpoint of a folder."""
    with runtime.ThreadCluster(plan.placement.ranks) as cluster:
        arrays = runtime.initialize(plan, cluster, sg.init.Xavier(), seed=1)
        adam = sg.optimizer.create("adam", learning_rate=0.01)
        session = runtime.Session(plan, cluster, arrays, optimizer=adam)
        runtime.load_checkpoint(session, folder)
        while session.steps < steps:
            session.step(batch(session.steps))
        assert runtime.save_checkpoint(session, folder, keep=1).name == f"step-{steps:08}"
        return session.parameters()


@pytest.mark.parametrize("groups", [{"first": sg.cpu(1), "second": sg.cpu(0)}, None])
def test_a_session_goes_on_elsewhere_with_the_same_bits(groups, tmp_path):
    wanted = trained(planned(network()), 6, tmp_path / "whole")
    trained(planned(network()), 3, tmp_path / "parts")
    moved = planned(network(), groups, schedule="gpipe")
    again = trained(moved, 6, tmp_path / "parts")
    assert {n: a.tobytes() for n, a in again.items()} == {n: a.tobytes() for n, a in wanted.items()}
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["step-00000006"]
    forward = planned(network(), wrt=())
    with runtime.ThreadCluster(2) as cluster:
        arrays = runtime.initialize(forward, cluster, sg.init.Zero(), seed=1)
        session = runtime.Session(forward, cluster, arrays)
        runtime.load_checkpoint(session, tmp_path / "parts")
        assert all(np.array_equal(a, wanted[n]) for n, a in session.parameters().items())
        with pytest.raises(RunError, match="no optimizer, so it changes nothing"):
            runtime.save_checkpoint(session, tmp_path / "parts")


def test_a_folder_without_checkpoints_changes_nothing(tmp_path):
    plan = planned(network())
    with runtime.ThreadCluster(2) as cluster:
        arrays = runtime.initialize(plan, cluster, sg.init.Xavier(), seed=1)
        session = runtime.Session(plan, cluster, arrays, optimizer=sg.optimizer.create("sgd"))
        load = partial(runtime.load_checkpoint, session)
        assert load(tmp_path / "none") is None
        assert not (tmp_path / "none").exists()
        assert session.steps == 0
        with pytest.raises(ConfigError, match="cannot write /dev/null"):
            runtime.save_checkpoint(session, "/dev/null/a")
