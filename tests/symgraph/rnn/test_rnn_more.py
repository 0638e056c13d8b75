"""Bidirectional, zoneout and fused cells, their packed weights, and checkpoints of networks."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partitioner.base.segments import time_segments
from symgraph.core.errors import ConfigError, GraphError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.frontend.params_file import load_checkpoint, load_params, save_checkpoint, save_params
from symgraph.passes.gradients import gradients
from symgraph.passes.testing import check_grads
from symgraph.rnn import (
    BidirectionalCell,
    DropoutCell,
    FusedRNNCell,
    GRUCell,
    LSTMCell,
    ResidualCell,
    RNNCell,
    RNNParams,
    SequentialRNNCell,
    ZoneoutCell,
    do_rnn_checkpoint,
    load_rnn_checkpoint,
    save_rnn_checkpoint,
)
from tests.symgraph.running import random_feeds, run

DATA = Path(__file__).parents[1] / "data"
MODES = {
    "lstm": {"mode": "lstm", "num_layers": 2, "bidirectional": True, "prefix": "a_"},
    "gru": {"mode": "gru", "num_layers": 2, "bidirectional": False, "prefix": "b_"},
    "rnn": {"mode": "rnn_relu", "num_layers": 1, "bidirectional": True, "prefix": "c_"},
}


@pytest.fixture(autouse=True)
def fresh_names():
    with NameManager():
        yield


@pytest.fixture(scope="module")
def mxnet() -> Any:
    """What MXNet 1.9.1 made of the stacks of `MODES`; see data/write_mxnet.py."""
    with np.load(DATA / "mxnet_rnn.npz") as arrays:
        return dict(arrays)


def below(arrays: Any, start: str) -> dict[str, np.ndarray]:
    return {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}


# -- two directions ----------------------------------------------------------------------------


def test_a_bidirectional_cell():
    """Case R1: outputs (10, 200) and the parameters of both cells."""
    cell = BidirectionalCell(LSTMCell(100, prefix="l0_"), LSTMCell(100, prefix="r0_"), "rnn_bi_")
    outputs, states = cell.unroll(3, [sym.Variable(f"t{t}_data") for t in range(3)])
    group = sym.Group(outputs)
    assert group.list_outputs() == [f"rnn_bi_t{t}_output" for t in range(3)]
    assert {n for n in group.list_arguments() if not n.endswith("_data")} == {
        f"{d}0_{kind}_{what}"
        for d in "lr"
        for kind in ("i2h", "h2h")
        for what in ("weight", "bias")
    }
    assert group.infer_shape(**{f"t{t}_data": (10, 50) for t in range(3)})[1] == [(10, 200)] * 3
    assert [s.name for s in states] == ["l0_t2_out"] * 2 + ["r0_t2_out"] * 2
    assert len(cell.state_info) == len(states)
    with pytest.raises(GraphError, match="BidirectionalCell '' cannot be stepped: unroll it"):
        cell(sym.Variable("x"), states)


def test_the_backward_cell_reads_the_sequence_from_its_end():
    data = np.random.default_rng(0).standard_normal((4, 3, 2))

    def output(cell: Any, x: np.ndarray) -> np.ndarray:
        return run(cell.unroll(3, sym.Variable("x"), merge_outputs=True)[0], x=x)[0]

    got = output(BidirectionalCell(RNNCell(5, prefix="l_"), RNNCell(5, prefix="r_")), data)
    ahead = output(RNNCell(5, prefix="l_"), data)
    back = output(RNNCell(5, prefix="r_"), data[:, ::-1])
    np.testing.assert_array_equal(got, np.concatenate([ahead, back[:, ::-1]], axis=2))


@pytest.mark.parametrize("layout", ["NTC", "TNC"])
def test_merged_outputs_of_two_directions_are_the_same(layout):
    data = np.random.default_rng(0).standard_normal((4, 3, 2))
    data = data if layout == "NTC" else data.swapaxes(0, 1)

    def unroll(merge: bool) -> Any:
        cell = BidirectionalCell(GRUCell(5, prefix="l_"), GRUCell(5, prefix="r_"))
        return cell.unroll(3, sym.Variable("x"), layout=layout, merge_outputs=merge)[0]

    merged = unroll(True)
    assert merged.list_outputs() == ["bi_out_output"]
    steps = run(sym.Group(unroll(False)), x=data)
    np.testing.assert_array_equal(run(merged, x=data)[0], np.stack(steps, layout.index("T")))


def test_a_residual_over_two_directions():
    """Case R2: weights of 0 and inputs of 6 give 6."""
    base = BidirectionalCell(GRUCell(25, prefix="rnn_l_"), GRUCell(25, prefix="rnn_r_"))
    cell = ResidualCell(base)
    outputs, _ = cell.unroll(2, [sym.Variable(f"rnn_t{t}_data") for t in range(2)])
    group = sym.Group(outputs)
    assert group.list_outputs() == [f"bi_t{t}_plus_residual_output" for t in range(2)]
    graph = lower(group, {f"rnn_t{t}_data": (10, 50) for t in range(2)})
    zeros = {n.name: np.zeros(n.types[0].shape, "float32") for n in graph.variables}
    sixes = {f"rnn_t{t}_data": np.full((10, 50), 6, "float32") for t in range(2)}
    for value in evaluate(graph, zeros | sixes):
        np.testing.assert_array_equal(value, np.full((10, 50), 6))


def two_directions(layers: int, steps: int) -> sym.Symbol:
    stack = SequentialRNNCell()
    for i in range(layers):
        cells = (LSTMCell(3, prefix=f"{d}{i}_") for d in "lr")
        stack.add(BidirectionalCell(*cells, f"bi{i}_"))
    return sym.Group(stack.unroll(steps, sym.Variable("x"))[0])


def test_steps_of_two_directions_can_be_cut_along_time():
    steps = 4
    graph = lower(two_directions(1, steps), {"x": (2, steps, 3)})
    for node in graph:
        if "_t" in node.name:
            step = int(node.name.split("_t")[1][0])
            own = max(step, steps - 1 - step) if node.name.startswith("bi") else step
            assert node.tags["__time_step__"] == str(own), node.name
    segments = time_segments(graph, 1)
    assert segments.count == steps
    assert not segments.late
    both = gradients(lower(two_directions(2, steps), {"x": (2, steps, 3)}), ["l0_i2h_weight"])
    of = time_segments(both.graph, 1).of
    for node in both.graph:  # whatever waits for the later direction runs later: never a cycle
        for value in node.inputs:
            source = both.graph[value.node]
            if node.origin is None:
                assert of[source.name] <= of[node.name]
            elif source.origin is not None:
                assert of[source.name] >= of[node.name]


def test_gradients_of_two_directions():
    outputs = two_directions(1, 3)
    graph = lower(outputs, {"x": (2, 3, 4)}, {"x": "float64"})
    check_grads(graph, random_feeds(graph))


# -- zoneout -----------------------------------------------------------------------------------


def test_zoneout_keeps_old_units_in_training_alone():
    data = np.random.default_rng(0).standard_normal((50, 3, 4))

    def outputs(train: bool, cell: Any, seed: int = 0) -> list[np.ndarray]:
        with NameManager():
            made, _ = cell.unroll(3, sym.Variable("x"))
            return run(sym.Group(made), Env(train=train, seed=seed), x=data)

    plain = outputs(True, RNNCell(20))
    still = outputs(False, ZoneoutCell(RNNCell(20), 0.4, 0.3))
    for a, b in zip(plain, still, strict=True):
        np.testing.assert_array_equal(a, b)
    zoned = outputs(True, ZoneoutCell(RNNCell(20), zoneout_outputs=0.4))
    last = np.zeros_like(zoned[0])
    for new, got in zip(plain, zoned, strict=True):  # states are not zoned out: new is the same
        kept = got == last
        np.testing.assert_array_equal(got, np.where(kept, last, new))
        assert abs(kept.mean() - 0.4) < 0.05
        last = got
    again = outputs(True, ZoneoutCell(RNNCell(20), zoneout_outputs=0.4))
    other = outputs(True, ZoneoutCell(RNNCell(20), zoneout_outputs=0.4), seed=1)
    np.testing.assert_array_equal(again, zoned)
    assert not np.array_equal(other, zoned)


def test_zoneout_of_states():
    cell = ZoneoutCell(LSTMCell(20), zoneout_states=0.25)
    data = np.random.default_rng(0).standard_normal((60, 4))
    begin = cell.begin_state(func=sym.Variable)
    _, states = cell(sym.Variable("x"), begin)
    _, new = LSTMCell(20)(sym.Variable("x"), begin)
    old = {f"lstm_begin_state_{i}": np.full((60, 20), 9.0 + i) for i in range(2)}
    got = run(sym.Group(states), Env(train=True), x=data, **old)
    want = run(sym.Group(new), x=data, **old)
    for value, fresh, before in zip(got, want, old.values(), strict=True):
        kept = value == before
        np.testing.assert_array_equal(value, np.where(kept, before, fresh))
        assert abs(kept.mean() - 0.25) < 0.05
    assert not np.array_equal(got[0] == 9, got[1] == 10)  # every state has a mask of its own


def test_gradients_and_time_steps_of_zoneout():
    stack = SequentialRNNCell()
    stack.add(ZoneoutCell(LSTMCell(3, prefix="a_"), 0.3, 0.4))
    stack.add(GRUCell(3, prefix="b_"))
    outputs, _ = stack.unroll(3, sym.Variable("x"))
    graph = lower(sym.Group(outputs), {"x": (2, 3, 4)}, {"x": "float64"})
    check_grads(graph, random_feeds(graph), env=Env(train=True))
    untagged = [n.name for n in graph if not n.is_variable and "__time_step__" not in n.tags]
    assert untagged == ["slicechannel0"]
    with pytest.raises(GraphError, match="BidirectionalCell cannot be stepped, so it has no zone"):
        ZoneoutCell(BidirectionalCell(RNNCell(2, prefix="l_"), RNNCell(2, prefix="r_")))


# -- the fused cell and packed weights ---------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_unfused_stacks_are_mxnets(mode, mxnet):
    """Names, outputs and gradients of MXNet 1.9.1 for the same vector of parameters."""
    cell = FusedRNNCell(3, **MODES[mode])
    names = json.loads(str(mxnet["names"]))[mode]
    vector, prefix = mxnet[f"{mode}/vector"], MODES[mode]["prefix"]
    assert cell.parameter_count(4) == vector.size
    unpacked = cell.unpack_weights({f"{prefix}parameters": vector, "other": 1})
    assert unpacked.pop("other") == 1
    assert sorted(unpacked) == names["unpacked"]
    for name, array in below(mxnet, f"{mode}/unpacked/").items():
        np.testing.assert_array_equal(unpacked[name], array)
    packed = cell.unfuse().pack_weights(unpacked)
    want = below(mxnet, f"{mode}/packed/")
    assert packed.keys() == want.keys()
    for name, array in want.items():
        np.testing.assert_array_equal(packed[name], array)
    outputs, states = cell.unroll(3, sym.Variable("data"))
    assert sorted(outputs.list_arguments()) == sorted(names["arguments"])
    assert states == []
    if MODES[mode]["bidirectional"]:
        assert outputs.list_outputs() == names["merged"]
    steps, _ = cell.unroll(3, sym.Variable("data"), merge_outputs=False)
    assert sym.Group(steps).list_outputs() == names["outputs"]
    graph = lower(outputs, {"data": (2, 3, 4)})
    feeds = {"data": mxnet["data"], **packed}
    both = gradients(graph, [*feeds])
    heads = {
        name: np.ones((2, 3, outputs.infer_shape(data=(2, 3, 4))[1][0][2]), "float32")
        for name in both.heads.values()
    }
    output, *grads = evaluate(both.graph, feeds | heads)
    np.testing.assert_allclose(output, mxnet[f"{mode}/output"], rtol=1e-5, atol=1e-6)
    for name, gradient in zip(both.grads, grads, strict=True):
        wanted = mxnet[f"{mode}/grad/{name}"]
        np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("mode", MODES)
def test_packing_undoes_unpacking(mode, mxnet):
    cell = FusedRNNCell(3, **MODES[mode])
    name = f"{MODES[mode]['prefix']}parameters"
    given = {name: mxnet[f"{mode}/vector"]}
    np.testing.assert_array_equal(cell.pack_weights(cell.unpack_weights(given))[name], given[name])
    stack = cell.unfuse()
    packed = stack.pack_weights(cell.unpack_weights(given))
    again = stack.pack_weights(stack.unpack_weights(packed))
    assert again.keys() == packed.keys()
    for key, array in packed.items():
        np.testing.assert_array_equal(again[key], array)


def test_parameter_counts():
    """Case R7: an LSTM of 200 with 200 inputs, and a language model of two layers."""
    assert FusedRNNCell(200).parameter_count(200) == 321_600
    two = FusedRNNCell(200, num_layers=2).parameter_count(200)
    assert two + 10_000 * 200 + 200 * 10_000 + 10_000 == 4_653_200


def test_a_modified_stack_packs_its_base_cells():
    stack = SequentialRNNCell()
    stack.add(ResidualCell(LSTMCell(2, prefix="a_")))
    stack.add(DropoutCell(0.5))
    stack.add(ZoneoutCell(RNNCell(2, prefix="b_"), 0.5))
    rng = np.random.default_rng(0)
    args = {"x": rng.random(3)}
    for prefix, rows in (("a_", 8), ("b_", 2)):
        for kind in ("i2h", "h2h"):
            args[f"{prefix}{kind}_weight"] = rng.random((rows, 2))
            args[f"{prefix}{kind}_bias"] = rng.random(rows)
    unpacked = stack.unpack_weights(args)
    np.testing.assert_array_equal(unpacked["a_i2h_f_weight"], args["a_i2h_weight"][2:4])
    np.testing.assert_array_equal(unpacked["b_h2h_bias"], args["b_h2h_bias"])
    assert "a_i2h_weight" not in unpacked
    unpacked["a_i2h_f_weight"][:] = 0  # a copy
    assert args["a_i2h_weight"].all()
    assert stack.pack_weights(unpacked).keys() == args.keys()


def test_packing_says_what_is_missing():
    with pytest.raises(GraphError, match=r"no parameter 'lstm_i2h_weight'; .* 'x_i2h_weight'"):
        LSTMCell(2).unpack_weights({"x_i2h_weight": np.zeros((8, 2))})
    cell = FusedRNNCell(3)
    with pytest.raises(
        ShapeError, match="'lstm_parameters' has 100 elements, which is not 60 plus"
    ):
        cell.unpack_weights({"lstm_parameters": np.zeros(100)})
    with pytest.raises(GraphError, match="unknown mode 'LSTM': known: 'gru', 'lstm', 'rnn_relu'"):
        FusedRNNCell(3, mode="LSTM")
    with pytest.raises(GraphError, match="FusedRNNCell 'lstm_' cannot be stepped"):
        cell(sym.Variable("x"), cell.begin_state())


# -- files -------------------------------------------------------------------------------------


def test_parameter_files_of_mxnet():
    args, aux = load_params(DATA / "mxnet.params")
    np.testing.assert_array_equal(args["fc_weight"], np.arange(6, dtype="float32").reshape(2, 3))
    assert [str(args[n].dtype) for n in ("fc_weight", "ids", "half")] == [
        "float32",
        "int64",
        "float16",
    ]
    np.testing.assert_array_equal(aux["bn_moving_mean"], [1.5, 2.5])


def test_parameter_files_are_written_as_mxnet_writes_them(tmp_path):
    path = tmp_path / "again.params"
    save_params(path, *load_params(DATA / "mxnet.params"))
    assert path.read_bytes() == (DATA / "mxnet.params").read_bytes()
    save_params(path, {"one": np.float64(2.5), "none": np.zeros((0, 3), "int8")}, {})
    args, aux = load_params(path)
    assert (args["one"].shape, float(args["one"]), args["none"].shape) == ((), 2.5, (0, 3))
    assert aux == {}
    assert [p.name for p in tmp_path.iterdir()] == ["again.params"]


def test_parameter_files_that_are_none(tmp_path):
    path = tmp_path / "x.params"
    whole = (DATA / "mxnet.params").read_bytes()
    cpu_int64 = struct.pack("<iii", 1, 0, 6)
    broken = {
        "ends at byte 307": whole[:-5],
        "ends at byte 62": whole[:62],
        "begins with": b"x" * 40,
        # a dimension of 2**62 was an OverflowError, dtype number -1 was bool
        "ends at byte 312": whole[:36] + struct.pack("<q", 2**62) + whole[44:],
        "dtype number -1": whole.replace(cpu_int64, struct.pack("<iii", 1, 0, -1)),
    }
    for words, content in broken.items():
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=f"x.params: (not a parameter file of .*)?{words}"):
            load_params(path)
    with pytest.raises(ConfigError, match=r"y\.params: no such parameter file"):
        load_params(tmp_path / "y.params")
    with pytest.raises(ConfigError, match="'arg:w' is complex128, but files hold"):
        save_params(path, {"w": np.zeros(2, complex)}, {})


def test_checkpoints_of_recurrent_networks(tmp_path):
    cell = FusedRNNCell(2, prefix="a_")
    output, _ = cell.unroll(2, sym.Variable("x"))
    shapes = dict(zip(output.list_arguments(), output.infer_shape(x=(1, 2, 3))[0], strict=True))
    rng = np.random.default_rng(0)
    args = {n: rng.random(s).astype("float32") for n, s in shapes.items() if n != "x"}
    prefix = str(tmp_path / "net")
    do_rnn_checkpoint(cell, prefix, period=2)(0, output, args, {})
    assert list(tmp_path.iterdir()) == []
    do_rnn_checkpoint(cell, prefix, period=2)(1, output, args, {})
    stored = load_checkpoint(prefix, 2)[1]
    assert "a_l0_i2h_f_weight" in stored
    symbol, again, aux = load_rnn_checkpoint(cell, prefix, 2)
    assert symbol.tojson() == output.tojson()
    assert (again.keys(), aux) == (args.keys(), {})
    for name, array in args.items():
        np.testing.assert_array_equal(again[name], array)
    save_rnn_checkpoint([cell.unfuse()], prefix, 3, output, args, {})
    assert load_params(f"{prefix}-0003.params")[0].keys() == stored.keys()
    vector = cell.pack_weights(stored)  # what MXNet's own fused cell would have written
    save_checkpoint(prefix, 4, output, vector, {})
    unpacked = cell.unpack_weights(load_checkpoint(prefix, 4)[1])
    np.testing.assert_array_equal(unpacked["a_l0_h2h_o_bias"], stored["a_l0_h2h_o_bias"])


def test_checkpoints_of_cells_in_cells_and_of_shared_parameters(tmp_path):
    """A fused cell inside another one, and parameters of two cells, were not found."""
    fused = FusedRNNCell(3, 2, bidirectional=True, prefix="f_")
    first = GRUCell(3, prefix="a_", params=RNNParams("shared_"))
    stack = SequentialRNNCell()
    for cell in (first, GRUCell(3, prefix="b_", params=first.params), ResidualCell(RNNCell(3))):
        stack.add(cell)
    stack.add(fused)
    output, _ = stack.unroll(2, sym.Variable("x"))
    shapes = dict(zip(output.list_arguments(), output.infer_shape(x=(1, 2, 3))[0], strict=True))
    rng = np.random.default_rng(0)
    args = {n: rng.random(s).astype("float32") for n, s in shapes.items() if n != "x"}
    save_rnn_checkpoint(stack, str(tmp_path / "net"), 1, output, args, {})
    stored = load_params(tmp_path / "net-0001.params")[0]
    np.testing.assert_array_equal(stored["shared_i2h_z_bias"], args["shared_i2h_bias"][3:6])
    assert "f_r1_h2h_c_weight" in stored
    _, again, _ = load_rnn_checkpoint(stack, str(tmp_path / "net"), 1)
    assert again.keys() == args.keys()
    for name, array in args.items():
        np.testing.assert_array_equal(again[name], array)
