"""Networks of one rank each: joined they are the serial one, or an error that names both ends."""

from __future__ import annotations

import time

import numpy as np
import pytest

import symgraph as sg
from runtime.frontends.chainermn import create_communicator, join_ranks
from runtime.planning.options import Options
from runtime.transports import ThreadCluster
from symgraph.chainermn.rank_view import join, pseudo_connect, recv, send
from symgraph.core.context import cpu
from symgraph.core.errors import DTypeError, GraphError, ShapeError
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.passes.testing import check_op
from tests.helpers.pipelines import Case, assert_close, judge, on_threads


def layer(x, width=4, name=None):
    return sym.tanh(sym.FullyConnected(x, num_hidden=width, name=name))


def ring(p: int) -> list[sg.Symbol]:
    """0 -> 1 -> ... -> 0, each rank's symbol made by itself, with names that are the same."""
    symbols = []
    for rank in range(p):
        with NameManager():
            if rank:
                h = layer(recv(rank - 1, shape=(0, 4), dtype="float64"))
                symbols.append(send(h, (rank + 1) % p))
            else:
                token = send(layer(sym.Variable("data")), 1)
                y = layer(recv(p - 1, shape=(5, 4), dtype="float64"))
                loss = sym.MakeLoss(sym.square(y), name="loss")
                symbols.append(pseudo_connect(token, loss))
    return symbols


def ring_case(out: sg.Symbol) -> Case:
    """Values for a joined ring."""
    rng = np.random.default_rng(0)
    shapes, _, _ = out.infer_shape(rank0_data=(5, 3))
    values = {
        name: rng.standard_normal(shape)
        for name, shape in zip(out.list_arguments(), shapes, strict=True)
    }
    return Case(out, {"rank0_data": values.pop("rank0_data")}, values)


def devices(p: int) -> dict:
    return {f"rank{r}": cpu(r) for r in range(p)}


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_ring_is_the_serial_network(p):
    out, *others = join(ring(p))
    assert others == [None] * (p - 1)
    case = ring_case(out)
    got = on_threads(case, Options(devices(p)))
    assert_close(got, judge(case))
    h, values = case.feeds["rank0_data"], case.arrays
    for name in [
        "rank0_fullyconnected0",
        *(f"rank{r}_fullyconnected0" for r in range(1, p)),
        "rank0_fullyconnected1",
    ]:
        h = np.tanh(h @ values[f"{name}_weight"].T + values[f"{name}_bias"])
    np.testing.assert_allclose(got.outputs[0], h**2, rtol=1e-10)


@pytest.mark.parametrize("shape", [(4, 5), (3, 2), (1,)])
def test_pseudo_connect_changes_nothing(shape):
    """X5: an identity, whatever the token's shape."""
    rng = np.random.default_rng(1)
    check_op("_pseudo_connect", rng.standard_normal(shape), rng.standard_normal((2, 2)))
    check_op("_receive", rng.standard_normal(shape), shape=shape, dtype="float64", source="s")


def test_a_rank_may_send_what_has_no_gradient():
    """X4: data alone; ChainerMN's backward hung (PR #214)."""
    first = send(sym.Variable("data"), 1)
    rng = np.random.default_rng(2)
    arrays = {"rank1_fullyconnected0_weight": (4, 3), "rank1_fullyconnected0_bias": (4,)}
    with NameManager():
        second = sym.MakeLoss(layer(recv(0, shape=(0, 3), dtype="float64")), name="loss")
    _, out = join([first, second])
    case = Case(
        out,
        {"rank0_data": rng.standard_normal((5, 3))},
        {n: rng.standard_normal(s) for n, s in arrays.items()},
    )
    assert_close(on_threads(case, Options(devices(2))), judge(case))


def pair(first: dict, second: dict) -> list[sg.Symbol]:
    return [
        send(sym.Variable("a"), **{"rank": 1, "name": "s", **first}),
        sym.tanh(recv(**{"rank": 0, "shape": (2, 3), "name": "r", **second})),
    ]


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (
            {"tag": 1},
            {},
            "'s' of rank 0 has tag 1, but rank 1 receives 'r' with tag 0 from rank 0$",
        ),
        ({"rank": 0}, {}, "'s' of rank 0 names its own rank"),
        ({"rank": 2}, {}, "'s' of rank 0 names rank 2, but there are 2"),
        ({}, {"rank": 1}, "'r' of rank 1 names its own rank"),
    ],
)
def test_ends_that_do_not_meet(first, second, match):
    with pytest.raises(GraphError, match=match):
        join(pair(first, second))


def test_ranks_and_tags_are_whole_numbers():
    assert len(join(pair({"rank": np.int64(1), "tag": np.int8(2)}, {"tag": 2}))) == 2
    with pytest.raises(GraphError, match=r"a message's rank is 1.0 but must be a whole number"):
        pair({"rank": 1.0}, {})
    with pytest.raises(GraphError, match="a message's tag is None but must be a whole number"):
        pair({}, {"tag": None})


def test_ends_without_another():
    with pytest.raises(GraphError, match=r"'s' of rank 0 has tag 0, but rank 1 receives nothing"):
        join([pair({}, {})[0], sym.Variable("b")])
    with pytest.raises(GraphError, match=r"'r' of rank 1 has tag 0, but rank 0 sends nothing to"):
        join([sym.Variable("a"), pair({}, {})[1]])
    twice = sym.Group([send(sym.Variable("a"), 1, name="s"), send(sym.Variable("b"), 1, name="t")])
    with pytest.raises(GraphError, match="'s' and 't' of rank 0 have the same peer, 1, and tag, 0"):
        join([twice, pair({}, {})[1]])


def test_types_that_differ_name_both_ends():
    _, out = join(pair({}, {}))
    with pytest.raises(ShapeError, match=r"'rank1_r'.*\(2, 4\) .*\(2, 3\).*'rank0_s'"):
        lower(out, {"rank0_a": (2, 4)})
    with pytest.raises(DTypeError, match=r"'rank1_r'.*float64 \(sent by 'rank0_s'\) is no float32"):
        lower(out, {"rank0_a": (2, 3)}, {"rank0_a": "float64"})


def test_messages_that_wait_for_each_other():
    ends = [
        send(layer(recv(1 - r, shape=(2, 2), name=f"r{r}")), 1 - r, name=f"s{r}") for r in range(2)
    ]
    with pytest.raises(GraphError) as raised:
        join(ends)
    assert str(raised.value) == (
        "messages wait for each other:\n"
        "  'r0' of rank 0 waits for 's1' of rank 1\n"
        "  'r1' of rank 1 waits for 's0' of rank 0"
    )


def test_groups_are_ranks():
    with sg.AttrScope(ctx_group="mine"):
        first = pair({}, {})[0]
    with pytest.raises(GraphError, match="of rank 0 is in group 'mine', but groups are ranks"):
        join([first, pair({}, {})[1]])


def random_program(rng: np.random.Generator, p: int) -> list[list[tuple]]:
    """Each rank's ends, (verb, peer, tag, width), in an order that can run."""
    ends: list[list[tuple]] = [[] for _ in range(p)]
    for tag in range(6):
        a, b = rng.permutation(p)[:2]
        width = int(rng.integers(1, 4))
        ends[a].append(("send", int(b), tag, width))
        ends[b].append(("recv", int(a), tag, width))
    return ends


def build(ends: list[tuple]) -> sg.Symbol:
    """What is received is part of all that is sent later."""
    with NameManager():
        x, tokens = sym.Variable("data"), []
        for verb, peer, tag, width in ends:
            if verb == "send":
                wide = sym.FullyConnected(x, num_hidden=width)
                tokens.append(send(wide, peer, tag))
            else:
                got = recv(peer, tag, shape=(2, width))
                x = x + sym.FullyConnected(got, num_hidden=2)
        return sym.Group([*tokens, x])


def broken(rng: np.random.Generator, ends: list[list[tuple]]) -> None:
    """Take away an end, or change its peer, its tag, its width or its kind."""
    rank = int(rng.choice([r for r, own in enumerate(ends) if own]))
    at = int(rng.integers(len(ends[rank])))
    verb, peer, tag, width = ends[rank][at]
    kind = rng.integers(5)
    other = "recv" if verb == "send" else "send"
    ends[rank][at : at + 1] = [
        [(verb, rank, tag, width)],
        [(verb, peer, tag + 50, width)],
        [(verb, peer, tag, width + 1)],
        [(other, peer, tag, width)],
        [],
    ][kind]


def outcome(symbols: list[sg.Symbol], p: int) -> str:
    """The error of binding on threads, where each rank knows its own symbol; the same on all."""

    def work(end):
        comm = create_communicator("naive", end)
        try:
            outs = join_ranks(symbols[comm.rank], comm)
            lower(
                sym.Group([o for o in outs if o is not None]),
                {f"rank{r}_data": (2, 2) for r in range(p)},
            )
        except GraphError as error:
            return str(error)
        return ""

    with ThreadCluster(p, timeout=5) as cluster:
        first, *rest = cluster.run(work)
    assert all(other == first for other in rest)
    return first


@pytest.mark.slow
def test_random_wrong_programs_end_in_an_error_on_every_rank():
    """And the right ones they were made of do not; 200 of them, none of which can hang."""
    rng = np.random.default_rng(3)
    for number in range(200):
        p = 2 + number % 3
        ends = random_program(rng, p)
        if number % 10 == 0:
            assert outcome([build(own) for own in ends], p) == ""
        broken(rng, ends)
        begin = time.monotonic()
        error = outcome([build(own) for own in ends], p)
        assert "rank" in error, ends
        assert time.monotonic() - begin < 5
