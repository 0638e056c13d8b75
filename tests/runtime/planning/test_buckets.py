"""Plans of buckets: one placement for all, states, and what cannot be one network."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

import symgraph as sg
from runtime.engine.bucket_session import BucketSession
from runtime.planning.costs.prices import NOMINAL
from runtime.schedule.generators.table import SCHEDULES
from runtime.transports import ThreadCluster
from symgraph.core.errors import GraphError, LimitError, RunError, ScheduleError
from tests.helpers.buckets import (
    HIDDEN,
    VOCAB,
    batch,
    gradients_of,
    judge,
    lstm,
    make_buckets,
    options,
    start,
)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "auto"])
@pytest.mark.parametrize("strategy", ["optimal", "noncontiguous", "auto"])
def test_a_strategy_decides_once_for_all_buckets(strategy, schedule):
    how = options(
        3,
        schedule,
        groups=None,
        strategy=strategy,
        splits=False,
        pricing=lambda graph, contexts: NOMINAL,
    )
    buckets = make_buckets(lstm(3), batch(9), how)
    assert buckets.default.choice.schedule in SCHEDULES
    batches = [batch(9), batch(4), batch(6)]
    with ThreadCluster(3) as cluster:
        session, _ = start(buckets, cluster)
        before = {n: a.copy() for n, a in session.parameters().items()}
        session.step_batches(batches)
        want, _, _ = judge(lstm(3), batches, before)
        for name, value in gradients_of(session).items():
            np.testing.assert_allclose(value, want[name], rtol=1e-10, atol=1e-12)
    ranks = {}
    for key, plan in buckets._plans.items():
        assert not plan.placements or key == 9  # nothing is searched for again
        for name in plan.parameters:
            assert ranks.setdefault(name, plan.rank_of(name)) == plan.rank_of(name)
    assert len(set(ranks.values())) == 3


def test_labels_are_not_taken_for_words():
    """Both are reshaped in one group. A planner had put the one on device 0 and the other on 1, and
    in further buckets both went to device 0: more stages, and no step with the default bucket."""
    marked = options(2, "1f1b")
    given = make_buckets(lstm(), batch(9), marked).default
    placed = given.partition.placement
    nodes = [n for n in given.network.first if n.op == "Reshape" and n.origin is None]
    assert len(nodes) == 2
    label_side = {"softmax_label", *(n.name for n in nodes if n.inputs[0].node == "softmax_label")}
    late = {"softmax", "nll"}
    stages = {n: int(n in label_side or n in late) for n in placed.stage_of}
    apart = replace(placed, stage_of=stages, rank_of=(0, 1))
    how = options(2, "1f1b", groups=None, placement=apart)
    buckets = make_buckets(lstm(), batch(9), how)
    assert buckets.default.partition.rank_of == (0, 1)
    for length in (4, 6):
        assert buckets.plan(length, batch(length).descriptions).partition.rank_of == (0, 1)
    with ThreadCluster(2) as cluster:
        session, _ = start(buckets, cluster)
        assert session.step_batches([batch(9), batch(4)])["nll_count"] > 0


def test_a_bucket_with_other_stages_is_a_step_of_its_own():
    """Its times have no place among the default bucket's; looking for one ended the run."""

    def sym_gen(length):
        loss, data, label = lstm()(length)
        if length < 9:
            with sg.AttrScope(ctx_group="embed"):
                back = sg.sym.BlockGrad(sg.sym.identity(loss[0]), name="back")
            return sg.sym.Group([loss[0], sg.sym.sum(back, name="nll")]), data, label
        with sg.AttrScope(ctx_group="decode"):
            total = sg.sym.sum(sg.sym.BlockGrad(loss[0]), name="nll")
        return sg.sym.Group([loss[0], total]), data, label

    buckets = make_buckets(sym_gen, batch(9), options(2, "1f1b"))
    with ThreadCluster(2) as cluster:
        session, _ = start(buckets, cluster)
        for length in (9, 5, 9):
            session.step_batches([batch(length)])
        assert buckets.plan(5, ()).partition.rank_of == (0, 1, 0)
        with pytest.raises(ScheduleError, match="run them in steps of their own"):
            session.step_batches([batch(9), batch(5)])
        assert {key.stage for key in session.body_seconds} == {0, 1}


@pytest.mark.parametrize("how", ["shards", "replicas"])
def test_groups_on_several_devices_are_so_in_every_bucket(how):
    """The copies of a parameter get one sum of gradients, whichever bucket they are from."""
    groups = {"embed": sg.cpu(0), "layer0": sg.cpu(0), "layer1": sg.cpu(1)}
    groups["decode"] = (sg.cpu(0), sg.cpu(1))
    made = options(2, "1f1b", groups=groups, **{how: {"decode": "devices"}})
    with ThreadCluster(2) as cluster:
        session, arrays = start(make_buckets(lstm(), batch(7), made), cluster)
        for batches in ([batch(7)], [batch(7), batch(3)], [batch(3)]):
            before = {n: a.copy() for n, a in session.parameters().items()}
            session.step_batches(batches)
            want, _, _ = judge(lstm(), batches, before)
            for name, value in session.parameters().items():
                step = before[name] - 0.1 * want[name]
                np.testing.assert_allclose(value, step, rtol=1e-10, atol=1e-12)
        both = [{n for n in own if n.startswith("decode_weight")} for own in arrays.values()]
        assert all(len(names) == 1 for names in both)


def with_states(length):
    """A layer over `length` words, from its own states, which it gives on."""
    data, label = sg.sym.Variable("data"), sg.sym.Variable("softmax_label")
    x = sg.sym.Embedding(data, input_dim=VOCAB, output_dim=HIDDEN, name="embed")
    cell = sg.rnn.LSTMCell(HIDDEN, prefix="lstm_")
    begin = [sg.sym.Variable(f"init_{kind}") for kind in "hc"]
    x, ends = cell.unroll(length, x, begin, layout="NTC", merge_outputs=True)
    last = [sg.sym.BlockGrad(end, name=f"last_{k}") for k, end in zip("hc", ends, strict=True)]
    scores = sg.sym.FullyConnected(
        sg.sym.Reshape(x, shape=(-1, HIDDEN)), num_hidden=VOCAB, name="decode"
    )
    flat = sg.sym.Reshape(label, shape=(-1,))
    loss = sg.sym.SoftmaxOutput(scores, flat, normalization="valid", name="softmax")
    figures = sg.sym.nll_stats(loss, flat, name="nll")
    feeds = {n: sg.Feed(sg.TensorType((4, length), "int32")) for n in ("data", "softmax_label")}
    feeds |= {f"init_{k}": sg.Feed(sg.TensorType((4, HIDDEN), "float64")) for k in "hc"}
    states = {f"init_{k}": f"last_{k}_output" for k in "hc"}
    return sg.Model(sg.sym.Group([loss, figures, *last]), feeds, states)


@pytest.mark.parametrize("carry", [True, False])
def test_states_go_on_only_where_they_are_asked_to(carry):
    """Two chunks of 3 and 5 words are one text of 8 words with carried states, else two texts."""
    text = batch(8, pad=-2)
    chunks = [
        sg.io.DataBatch(
            [text.data[0][:, a:b]],
            [text.label[0][:, a:b]],
            bucket_key=b - a,
            provide_data=text.provide_data,
            provide_label=text.provide_label,
        )
        for a, b in ((0, 3), (3, 8))
    ]
    chunks = [replace(c, data=[c.data[0] % VOCAB], label=[c.label[0] % VOCAB]) for c in chunks]
    whole = replace(text, data=[text.data[0] % VOCAB], label=[text.label[0] % VOCAB])
    buckets = make_buckets(with_states, whole, options(1, groups=None))
    rest = {"optimizer": sg.optimizer.create("sgd", learning_rate=0.0)}
    with ThreadCluster(1) as cluster:
        session, arrays = start(buckets, cluster, carry_states=carry, **rest)
        in_chunks = sum(session.step_batches([c])["nll_nll"] for c in chunks)
        fresh = BucketSession(buckets, cluster, arrays, **rest)
        at_once = fresh.step_batches([whole])["nll_nll"]
        if carry:
            assert in_chunks == pytest.approx(at_once, rel=1e-12)
            with pytest.raises(RunError, match="carry_states is set, but a step has 2 batches"):
                session.step_batches(chunks)
        else:
            assert in_chunks != pytest.approx(at_once, rel=1e-6)


def test_a_loss_by_the_size_of_its_batch_cannot_be_of_several():
    buckets = make_buckets(lstm(normalization="batch"), batch(7), options(1, groups=None))
    with ThreadCluster(1) as cluster:
        session, _ = start(buckets, cluster)
        session.step_batches([batch(3)])
        with pytest.raises(GraphError, match="'softmax' divides by the size of one batch"):
            session.step_batches([batch(3), batch(7)])


def test_a_parameter_that_a_bucket_lacks_is_named():
    def sym_gen(length):
        return lstm(layers=1 + (length > 5))(length)

    buckets = make_buckets(sym_gen, batch(7), options(1, groups=None))
    with pytest.raises(GraphError, match=r"bucket 7 has a parameter 'lstm1_.*', which bucket 3"):
        buckets.plan(3, batch(3).descriptions)


def test_a_name_that_the_batch_does_not_provide_is_named():
    given = batch(5)
    with pytest.raises(GraphError, match="bucket 5: sym_gen names 'softmax_label', but the batch"):
        make_buckets(lstm(), replace(given, label=[], provide_label=[]), options(1, groups=None))


def test_a_parameter_stays_where_the_default_bucket_has_it():
    """Even if its only reader is in another group for short sentences."""

    def sym_gen(length):
        symbol, *names = lstm()(length)
        weight = sg.sym.Variable("extra", shape=(1,))
        with sg.AttrScope(ctx_group="embed" if length > 5 else "decode"):
            more = sg.sym.MakeLoss(sg.sym.sum(sg.sym.square(weight)), name="more")
        return sg.sym.Group([symbol, more]), *names

    buckets = make_buckets(sym_gen, batch(7), options(2))
    plan = buckets.plan(3, batch(3).descriptions)
    assert plan.rank_of("extra") == buckets.default.rank_of("extra")


def test_random_numbers_do_not_depend_on_which_buckets_came_before():
    """Names that are given automatically key the random streams, so each bucket has its own."""

    def sym_gen(length):
        symbol, *names = lstm()(length)
        inner = symbol.get_internals()["embed_output"]
        return sg.sym.Group([symbol, sg.sym.MakeLoss(sg.sym.sum(sg.sym.Dropout(inner)))]), *names

    found = []
    for first in ([], [batch(4)]):
        buckets = make_buckets(sym_gen, batch(7), options(1, groups=None))
        for given in first:
            buckets.plan(4, given.descriptions)
        plan = buckets.plan(5, batch(5).descriptions)
        found.append({n.attrs["stream"] for n in plan.network.first if n.op == "Dropout"})
    assert found[0] == found[1]
    assert len(found[0]) == 1


def test_scoring_shares_the_pool_and_changes_nothing():
    buckets = make_buckets(lstm(), batch(9), replace(options(2, "1f1b"), micro_batches=4))
    with ThreadCluster(2) as cluster:
        session, arrays = start(buckets, cluster)
        scores = BucketSession(buckets.scoring(), cluster, arrays, resources=session.resources)
        before = {n: a.copy() for n, a in session.parameters().items()}
        held = session.held
        scores.step_batches([batch(9), batch(4)])
        assert scores.held is not held
        assert scores.held == held
        _, nll, words = judge(lstm(), [batch(9), batch(4)], before)
        figures = scores.collect()
        assert figures == {"nll_nll": pytest.approx(nll, rel=1e-10), "nll_count": words}
        for name, value in session.parameters().items():
            assert value.tobytes() == before[name].tobytes()


def test_a_step_of_several_batches_keeps_to_the_memory_limit():
    free = make_buckets(lstm(), batch(9), options(2, "gpipe", 1))
    limit = max(m.peak for m in free.default.memory)
    buckets = make_buckets(lstm(), batch(9), options(2, "gpipe", 1, memory=limit))
    with ThreadCluster(2) as cluster:
        session, _ = start(buckets, cluster)
        session.step_batches([batch(3)])
        with pytest.raises(LimitError, match=r"a step of 4 batches needs .* on cpu\(\d\), more"):
            session.step_batches([batch(9)] * 4)
        with pytest.raises(LimitError, match="more than the limit"):
            session.step_batches([batch(20)])


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zb-v"])
def test_no_step_of_smaller_buckets_needs_more_than_one_of_the_largest(schedule):
    """Steps were checked when they first came: one of long sentences ended a run after hours, and
    short micro-batches that came first, to save time, could need more than long ones."""
    free = make_buckets(lstm(), batch(9), options(2, schedule), batches=3)
    limit = max(m.peak for m in free.default.account.step.packed)
    with pytest.raises(LimitError, match=r"of 3 batches by .* smallest limit that") as error:
        make_buckets(lstm(), batch(9), options(2, schedule, memory=limit - 1), batches=3)
    assert error.value.smallest == limit
    buckets = make_buckets(lstm(), batch(9), options(2, schedule, memory=limit), batches=3)
    for length in (7, 5, 2):
        free.plan(length, batch(length).descriptions)
        buckets.plan(length, batch(length).descriptions)
    mixed = [*combinations_with_replacement((9, 7, 5, 2), 3)]
    peaks = [max(m.peak for m in buckets.step(keys).memory) for keys in mixed]
    assert peaks[0] == limit == max(peaks)
    if schedule != "gpipe":  # the fastest order needs more, where it may
        assert max(m.peak for keys in mixed for m in free.step(keys).memory) > limit


def test_a_limit_is_for_all_batches_of_a_step_in_pieces_of_any_size():
    """Four samples in three micro-batches are pieces of two sizes."""
    for schedule in ("gpipe", "1f1b"):
        how = options(2, schedule, 3, memory=1)
        with pytest.raises(LimitError) as error:
            make_buckets(lstm(), batch(6), how, batches=2)
        fitting = replace(how, memory=error.value.smallest)
        buckets = make_buckets(lstm(), batch(6), fitting, batches=2)
        assert max(m.peak for m in buckets.step((6, 6)).memory) <= error.value.smallest


def test_stages_run_again_so_that_all_batches_fit():
    """Recomputation was chosen for a step of one batch, and a step of two did not fit."""
    free = make_buckets(lstm(), batch(9), options(2), batches=2).default
    limit = max(m.peak for m in free.account.step.packed) - 1
    assert max(m.peak for m in free.memory) < limit
    how = options(2, memory=limit, recompute="auto")
    buckets = make_buckets(lstm(), batch(9), how, batches=2)
    assert buckets.default.choice.recompute
    assert max(m.peak for m in buckets.step((9, 9)).memory) <= limit


def test_the_order_of_backward_runs_is_not_for_scores():
    """`pipeline.order` was refused for the plan of the evaluation, so no run could have it."""
    buckets = make_buckets(lstm(), batch(5), options(2, "gpipe", order="forward"))
    buckets.plan(3, batch(3).descriptions)
    assert len(buckets.step([5, 3]).parts.mbs) == 4
    scoring = buckets.scoring()
    scoring.plan(3, batch(3).descriptions)
    assert len(scoring.step([5, 3]).parts.mbs) == 4
