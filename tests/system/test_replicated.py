"""Replicated groups in pipelines: placements, schedules, training, checkpoints, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import symgraph as sg
from partitioner.cutting.replicas import buckets
from runtime.backends.device.arrays import copy
from runtime.engine.session import Session, initialize
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.schedule.instructions import REPLICAS, Collective
from runtime.schedule.message_costs import replica_sum_seconds
from runtime.schedule.replay import Costs, Link, simulate
from runtime.training.checkpoints.sessions import save_checkpoint
from runtime.training.checkpoints.state import restore
from runtime.transports import ThreadCluster
from runtime.transports.threads.collectives import ThreadCollectives
from symgraph.core.context import cpu
from symgraph.core.errors import GraphError, MicroBatchError, PlacementError
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from tests.fakes.fake_cluster import FakeCluster
from tests.helpers.pipelines import (
    Case,
    Result,
    assert_close,
    assert_equal_parameters,
    assert_same_bits,
    in_pieces,
    judge,
    make_plan,
    on_devices,
)
from tests.helpers.small_lm import losses, write_config
from tests.mpi.launch import launch, needs_mpi

VOCAB, WIDTH, STEPS, BATCH = 11, 4, 3, 6


def network(*, dropout: float = 0.0, tied: bool = False, **marks: dict[str, str]) -> Case:
    """A time-major language model (T, B), with ids to ignore; marks: group -> attributes."""
    rng = np.random.default_rng(5)
    own = {"weight": sym.Variable("tied_weight")} if tied else {}
    with AttrScope(ctx_group="embed", **marks.get("embed", {})):
        x = sym.Embedding(
            sym.Variable("data"), input_dim=VOCAB, output_dim=WIDTH, name="embed", **own
        )
    shared = {"weight": sym.Variable("fc_weight"), "bias": sym.Variable("fc_bias")}
    with AttrScope(ctx_group="hidden", **marks.get("hidden", {})):
        steps = sym.SliceChannel(x, num_outputs=STEPS, axis=0, squeeze_axis=True, name="steps")
        state, outs = sg.sym.zeros_like(steps[0]), []
        for t in range(STEPS):
            with AttrScope(time_step=str(t)):
                joined = sym.FullyConnected(
                    sym.concat(steps[t], state, dim=1), num_hidden=WIDTH, name=f"fc_t{t}", **shared
                )
                state = sym.Dropout(sym.tanh(joined), p=dropout, name=f"drop_t{t}")
                outs.append(state)
        rows = sym.Reshape(sym.stack(*outs, axis=0), shape=(-1, WIDTH), name="rows")
    with AttrScope(ctx_group="decode", **marks.get("decode", {})):
        label = sym.Reshape(sym.Variable("label"), shape=(-1,), name="labels")
        scores = sym.FullyConnected(rows, num_hidden=VOCAB, name="decode", **own)
        ignore = {"use_ignore": True, "ignore_label": 0}
        loss = sym.SoftmaxOutput(scores, label, normalization="valid", name="loss", **ignore)
        out = sym.Group([loss, sym.nll_stats(loss, label, name="nll", **ignore)])
    feeds = {n: rng.integers(0, VOCAB, (STEPS, BATCH)).astype("int32") for n in ("data", "label")}
    shapes, _, _ = out.infer_shape(**{n: a.shape for n, a in feeds.items()})
    arrays = {
        name: rng.standard_normal(shape)
        for name, shape in zip(out.list_arguments(), shapes, strict=True)
        if name not in feeds
    }
    return Case(out, feeds, arrays, {"data": 1, "label": 1})


def in_pipeline(case: Case, options: Options) -> Result:
    """One step's outputs and gradients, those of copies summed, under the names of the network."""
    found, shards = in_pieces(case, options)
    grads: dict[str, np.ndarray] = {}
    for name, gradient in found.grads.items():
        own = shards[name].parameter if name in shards else name
        grads[own] = grads[own] + gradient if own in grads else gradient
    return Result(found.outputs, grads)


def placed(devices: int, **groups: object) -> Options:
    where = {"embed": cpu(0), "hidden": cpu(0), "decode": cpu(devices - 1)} | groups
    return on_devices(devices, where)


WAYS = {
    "hidden": placed(3, hidden=[cpu(0), cpu(1)]),
    "hidden and decode": placed(2, hidden=[cpu(1), cpu(0)], decode=[cpu(1), cpu(0)]),
    "two numbers": placed(3, hidden=[cpu(0), cpu(1)], decode=[cpu(0), cpu(1), cpu(2)]),
    "everything": placed(2, **{g: [cpu(0), cpu(1)] for g in ("embed", "hidden", "decode")}),
}


@pytest.mark.every(9)
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("way", WAYS)
def test_every_schedule_equals_the_reference(way, schedule, micro_batches):
    case = network()
    options = replace(WAYS[way], schedule=schedule, micro_batches=micro_batches)
    assert_close(in_pipeline(case, options), judge(case))


@pytest.mark.parametrize("micro_batches", [2, 4])
@pytest.mark.parametrize("way", ["hidden", "everything"])
@pytest.mark.parametrize("tied", [False, True])
def test_shares_need_not_be_equal(tied, way, micro_batches, monkeypatch):
    """Six samples in two micro-batches of three, dealt out as two and one; merged axes too.

    Ten in four are 3, 3, 2 and 2: the graphs of all sizes once had other names for their shares.
    """
    monkeypatch.setattr(
        "tests.system.test_replicated.BATCH", 3 * micro_batches - micro_batches // 3 * 2
    )
    case = network(tied=tied)
    options = replace(WAYS[way], micro_batches=micro_batches)
    assert_close(in_pipeline(case, options), judge(case))


def test_a_tied_parameter_that_others_read_has_no_copies():
    made = make_plan(network(tied=True), WAYS["hidden and decode"])
    assert {s.parameter for s in made.shards.values()} == {"fc_weight", "fc_bias", "decode_bias"}
    assert "tied_weight" in made.grads


def test_the_place_of_replicas_changes_no_bit():
    """Masks are keyed by sample, so also dropout is the same on one device and in any place."""
    case = network(dropout=0.4, hidden={"replicate": "2"})
    one = placed(1)
    alone = in_pipeline(case, replace(one, micro_batches=3))
    for hidden in (cpu(1), [cpu(0), cpu(1)], [cpu(2), cpu(0)]):
        for schedule in ("1f1b", "zb-h1"):
            options = replace(placed(3, hidden=hidden), schedule=schedule, micro_batches=3)
            assert_same_bits(in_pipeline(case, options), alone)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_replicas_draw_the_masks_of_their_samples(micro_batches):
    case = network(dropout=0.4)
    options = replace(WAYS["hidden"], micro_batches=micro_batches)
    assert_close(in_pipeline(case, options), in_pipeline(case, placed(1)))


def test_replicas_work_at_the_same_time():
    """One micro-batch through a group that is all the work takes half as long on two devices."""
    seconds = {}
    for name, hidden in (("one", cpu(0)), ("two", [cpu(0), cpu(1)])):
        made = make_plan(network(), placed(2, hidden=hidden))

        def work(key: object, made: Plan = made) -> int:
            nodes = made.partition.bodies[key].graph
            return sum(n.types[0].size for n in nodes if n.name.startswith(("fc_t", "drop_t")))

        seconds[name] = simulate(made.schedule, made.partition, Costs(work)).makespan
    assert seconds["two"] <= 0.55 * seconds["one"]


def test_only_shares_are_sent():
    made = make_plan(network(), placed(2, hidden=[cpu(0), cpu(1)], embed=cpu(0), decode=cpu(0)))
    sent = [e for e in made.partition.edges if made.partition.crosses(e)]
    assert {e.type.size for e in sent if e.type.shape} <= {
        STEPS * BATCH // 2 * WIDTH,
        BATCH // 2 * WIDTH,
    }


# -- refusals ------------------------------------------------------------------------------------


def test_more_replicas_than_samples():
    options = replace(WAYS["two numbers"], micro_batches=3)
    with pytest.raises(MicroBatchError, match=r"of 2 samples .* to 3 replicas of 'decode'"):
        make_plan(network(), options)


@pytest.mark.parametrize("text", ["0", "two", "2:1"])
def test_marks_that_say_nothing(text):
    with pytest.raises(GraphError, match=r"has replicate=.*write a number of replicas"):
        make_plan(network(hidden={"replicate": text}), placed(1))


def test_shards_are_not_replicated_as_well():
    with pytest.raises(GraphError, match=r"'decode.*' is both split into shards and replicated"):
        make_plan(network(decode={"replicate": "2", "shard": "2"}), placed(1))


def test_a_wrong_number_of_devices():
    with pytest.raises(PlacementError, match="'hidden' is mapped to 3 devices"):
        make_plan(network(hidden={"replicate": "2"}), placed(3, hidden=[cpu(0), cpu(1), cpu(2)]))


def test_networks_that_mix_samples_are_refused():
    with AttrScope(ctx_group="hidden"):
        x = sym.Variable("x")
        out = sym.MakeLoss(sym.square(sym.broadcast_sub(x, sym.mean(x, axis=0, keepdims=True))))
    case = Case(out, {"x": np.ones((4, 2))}, {})
    options = Options({"hidden": (cpu(0), cpu(1))}, cpu(0), (cpu(0), cpu(1)))
    with pytest.raises(MicroBatchError, match="micro-batches or replicas would change its result"):
        plan(case.symbol, case.specs, options)


# -- training ------------------------------------------------------------------------------------


def session(
    hidden: object, devices: int, cluster: ThreadCluster, marks: str = "1", **more: Any
) -> Session:
    case = network(dropout=0.3, hidden={"replicate": marks} if marks != "1" else {})
    options = replace(
        placed(devices, hidden=hidden),
        update=True,
        micro_batches=2,
        schedule="1f1b",
        slots=1,
        **more,
    )
    wrt = case.trained()
    made = plan(case.symbol, case.specs, options, wrt=wrt, dtypes=dict.fromkeys(wrt, "float64"))
    arrays = initialize(made, cluster, sg.init.Uniform(0.5), seed=3)
    rule = sg.optimizer.create("sgd", learning_rate=0.2, momentum=0.9, wd=0.01)
    return Session(made, cluster, arrays, optimizer=rule, clip=0.5)


def feeds(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    return {n: rng.integers(0, VOCAB, (STEPS, BATCH)).astype("int32") for n in ("data", "label")}


def trained(hidden: object, devices: int, marks: str = "1") -> dict[str, np.ndarray]:
    with ThreadCluster(devices) as cluster:
        run = session(hidden, devices, cluster, marks)
        for i in range(10):
            run.step(feeds(i))
        return run.parameters()


@pytest.mark.parametrize(
    ("hidden", "devices"),
    [
        ([cpu(0), cpu(1)], 2),
        ([cpu(2), cpu(0), cpu(1)], 3),
        ([cpu(1), cpu(1)], 2),
        ([cpu(0), cpu(1), cpu(0)], 2),
    ],
)
def test_training_on_replicas_is_training_on_one_device(hidden, devices):
    """First values, momentum, decay, clipping by a norm in which a copy counts once."""
    assert_equal_parameters(trained(hidden, devices), trained(cpu(0), 1))


def test_copies_stay_equal_and_their_place_changes_no_bit():
    want = trained(cpu(0), 1, marks="2")
    got = trained([cpu(1), cpu(0)], 2)
    assert all(got[n].tobytes() == a.tobytes() for n, a in want.items())
    with ThreadCluster(2) as cluster:
        run = session([cpu(1), cpu(0)], 2, cluster)
        for i in range(5):
            run.step(feeds(i))
        copies = [
            [a for arrays in run.arrays.values() for n, a in arrays.items() if n.startswith(name)]
            for name in ("fc_weight", "fc_bias")
        ]
    assert [len(c) for c in copies] == [2, 2]
    assert all(a.tobytes() == b.tobytes() for a, b in copies)


def two_biases(x: sg.Symbol, y: sg.Symbol) -> sg.Symbol:
    """The gradients of both biases are that of the sum."""
    return sum(sym.FullyConnected(v, num_hidden=3, name=f"of_{v.name}") for v in (x, y))


def adapted_weight(x: sg.Symbol, y: sg.Symbol) -> sg.Symbol:
    """The gradient of `weight` is also what another body reads for those of the others."""
    with AttrScope(ctx_group="b"):
        change = sym.dot(*(sym.Variable(f"{n}_weight", shape=(n, 2)) for n in (3, 2)))
    weight = sym.Variable("weight", shape=(3, 2)) + change
    return sym.FullyConnected(x + y, weight=weight, num_hidden=3, no_bias=True, name="fc")


@pytest.mark.parametrize(("network", "groups"), [(two_biases, "a"), (adapted_weight, "ab")])
def test_sums_over_replicas_leave_what_shares_their_memory(network, groups):
    """With one micro-batch they are made in place; parameters got wrong updates."""
    found = []
    for places in (cpu(0), [cpu(0), cpu(1)]):
        with sg.name.NameManager(), AttrScope(ctx_group="a"):
            net = sym.MakeLoss(sym.square(network(sym.Variable("x"), sym.Variable("y"))))
        with sg.mod.Module(
            net, ["x", "y"], None, group2ctxs=dict.fromkeys(groups, places)
        ) as module:
            module.bind([("x", (6, 2)), ("y", (6, 2))])
            module.init_params(sg.init.One())
            module.init_optimizer(optimizer_params={"learning_rate": 0.1})
            module.train_batch(sg.io.DataBatch([np.ones((6, 2)), np.ones((6, 2))]))
            found.append(module.get_params()[0])
    assert_equal_parameters(found[1], found[0])


def test_the_sum_is_an_instruction_and_costs_time():
    with ThreadCluster(2) as cluster:
        made = session([cpu(0), cpu(1)], 2, cluster).plan
    assert all(list(p).count(Collective(REPLICAS)) == 1 for p in made.schedule.programs)
    plain = simulate(made.schedule, made.partition, Costs(lambda key: 1))
    ((bodies, free),) = replica_sum_seconds(made.partition, lambda source, target: Link())
    ends = [end for track in plain.tracks for run, _, end in track.runs() if run.key in bodies]
    left = plain.makespan - max(ends) * float(plain.unit)  # what runs beside the sum
    assert free == 0
    assert left > 0
    for seconds, more in ((left, 0), (left + 7, 7)):
        costly = Costs(lambda key: 1, sums=[(bodies, seconds)])
        assert simulate(made.schedule, made.partition, costly).makespan == plain.makespan + more


@pytest.mark.slow
@pytest.mark.usefixtures("lent")
@pytest.mark.parametrize(
    ("hidden", "devices"),
    [
        ([cpu(1), cpu(0)], 2),
        ([cpu(2), cpu(0), cpu(1)], 3),
        ([cpu(0), cpu(1), cpu(0)], 2),
    ],
)
def test_many_buckets_under_way_change_no_bit(monkeypatch, hidden, devices):
    """Each parameter is a bucket of its own; ranks are late by turns."""
    want = trained(cpu(0), 1, marks=str(len(hidden)))
    monkeypatch.setattr("partitioner.cutting.replicas.BUCKET_BYTES", 1)
    with FakeCluster(devices, 0, seed=devices, delay=1e-4) as cluster:
        run = session(hidden, devices, cluster)
        assert len(buckets(run.plan.partition)) == 2
        for i in range(10):
            run.step(feeds(i))
        got = run.parameters()
    assert all(got[n].tobytes() == a.tobytes() for n, a in want.items())


@pytest.mark.parametrize("bucket", [1, 1 << 20])
@pytest.mark.parametrize("hidden", [[cpu(1), cpu(0)], [cpu(0), cpu(1), cpu(0)]])
def test_what_sums_of_copies_need_is_counted_as_it_is_planned(monkeypatch, lent, hidden, bucket):
    """A summary measured without it, and buckets of several shapes took more than was planned."""
    monkeypatch.setattr("partitioner.cutting.replicas.BUCKET_BYTES", bucket)
    with ThreadCluster(2) as cluster:
        run = session(hidden, 2, cluster, shared_memory=lent)
        run.step(feeds(0))
        held = [run.updaters[rank].held for rank in (0, 1)]
        states = [
            sum(a.nbytes for s in run.updaters[r].states.values() for a in s.values())
            for r in (0, 1)
        ]
    assert held == [memory.optimizer for memory in run.plan.memory]
    assert all(states)
    for mine, all_ in zip(states, held, strict=True):
        assert mine == all_ if lent else mine < all_


def test_pieces_of_gradients_begin_where_cards_can_read_them(monkeypatch):
    """A float32 gradient lay behind five elements of float16, at no multiple of its item size."""
    moved = []

    def watched(target: np.ndarray, source: np.ndarray) -> None:
        moved.append(target.flags.aligned and source.flags.aligned)
        copy(target, source)

    monkeypatch.setattr("runtime.engine.replica_sums.copy", watched)
    monkeypatch.setattr(ThreadCollectives, "lend", None)
    want, got = (of_two_dtypes(where) for where in (cpu(0), [cpu(0), cpu(1)]))
    assert len(moved) >= 2 * len(got)
    assert all(moved)
    assert {n: (a.dtype, a.tobytes()) for n, a in got.items()} == {
        n: (a.dtype, a.tobytes()) for n, a in want.items()
    }


def of_two_dtypes(hidden: object) -> dict[str, np.ndarray]:
    """Parameters after a step, on one device or two."""
    rng = np.random.default_rng(0)
    marks = {"replicate": "2"} if hidden == cpu(0) else {}
    with AttrScope(ctx_group="hidden", **marks):
        half = sym.Cast(sym.Variable("x"), dtype="float16")
        half = sym.FullyConnected(half, num_hidden=3, name="half")
        whole = sym.FullyConnected(sym.Cast(half, dtype="float32"), num_hidden=3, name="whole")
        out = sym.MakeLoss(sym.square(whole))
    shapes = {"weight": (3, 3), "bias": (3,)}
    arrays = {
        f"{layer}_{kind}": rng.standard_normal(shape).astype(dtype)
        for layer, dtype in (("half", "float16"), ("whole", "float32"))
        for kind, shape in shapes.items()
    }
    case = Case(out, {"x": rng.standard_normal((4, 3)).astype("float32")}, arrays)
    options = replace(on_devices(2, {"hidden": hidden}), update=True)
    made = make_plan(case, options)
    with ThreadCluster(2) as cluster:
        values = initialize(made, cluster, sg.init.Uniform(0.5), seed=3)
        rule = sg.optimizer.create("sgd", learning_rate=0.1)
        run = Session(made, cluster, values, optimizer=rule)
        run.step(case.feeds)
        return run.parameters()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (([cpu(0), cpu(1)], 2), (cpu(0), 1)),
        ((cpu(0), 1), ([cpu(0), cpu(1)], 2)),
        (([cpu(0), cpu(1)], 2), ([cpu(2), cpu(0), cpu(1)], 3)),
    ],
)
def test_a_checkpoint_goes_on_with_other_replicas(tmp_path, before, after):
    with ThreadCluster(before[1]) as cluster:
        run = session(*before, cluster)
        for i in range(4):
            run.step(feeds(i))
        saved = save_checkpoint(run, tmp_path, keep=1)
    with ThreadCluster(after[1]) as cluster:
        run = session(*after, cluster)
        restore(run, saved)
        for i in range(4, 10):
            run.step(feeds(i))
        assert_equal_parameters(run.parameters(), trained(cpu(0), 1))


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "ways",
    [
        (),
        ("pipeline.time_segment=2",),
        ("pipeline.schedule=zb-h1", "pipeline.recompute=all"),
        ("group2ctx.decode=[cpu(1), cpu(0)]",),
    ],
)
def test_the_language_model_with_replicas_from_a_config(tmp_path, ways):
    """Carried states, time segments, recomputation, and a decoder in shards beside it."""
    train = "optimizer: adam, learning_rate: 0.01, clip_global_norm: 1.0, steps: 6, dtype: float64"
    path = write_config(tmp_path, train, args="dropout: 0.2")
    more = ("pipeline.micro_batches=3", "group2ctx.layer0=[cpu(0), cpu(1)]")
    assert losses(path, *more, *ways) == pytest.approx(losses(path), rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [pytest.param(2, marks=needs_mpi)])
def test_replicas_in_processes_of_their_own(tmp_path, processes):
    """The bits of threads."""
    train = "optimizer: adam, learning_rate: 0.01, clip_global_norm: 1.0, steps: 6"
    path = write_config(tmp_path, train)
    more = ("pipeline.micro_batches=3", "group2ctx.layer0=[cpu(1), cpu(0)]")
    want = losses(path, *more)
    ended = launch(processes, "symgraph.run", path, *more, "--json")
    assert ended.status == 0, str(ended)
    assert f'"loss": {want!r}' in ended.stdout
