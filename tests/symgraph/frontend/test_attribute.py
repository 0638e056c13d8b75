"""Attribute scopes and the two spellings of the executor's keys."""

from __future__ import annotations

import threading

import pytest

from symgraph.core.errors import GraphError
from symgraph.core.tags import HIDDEN, canonical, hide, inherited, lookup
from symgraph.frontend.attribute import AttrScope


def test_explicit_attributes_override_the_scope():
    """Case G16: scope group='4', variable group='1' gives '1'."""
    with AttrScope(group="4", data="great"):
        assert AttrScope.current().get({"dtype": "data", "group": "1"}) == {
            "group": "1",
            "data": "great",
            "dtype": "data",
        }
        assert AttrScope.current().get(None) == {"group": "4", "data": "great"}
    assert AttrScope.current().get(None) == {}


def test_inner_scope_adds_and_overrides():
    outer = AttrScope(x="1", y="1")
    with outer:
        with AttrScope(y="2", z="2") as both:
            assert AttrScope.current().get({}) == both.get({}) == {"x": "1", "y": "2", "z": "2"}
        assert AttrScope.current().get({}) == {"x": "1", "y": "1"}


def test_a_scope_keeps_nothing_of_where_it_was_used():
    inner = AttrScope(b="2")
    with AttrScope(a="1"), inner:
        pass
    with inner:
        assert AttrScope.current().get({}) == {"b": "2"}


def test_scope_closes_after_an_exception():
    with pytest.raises(KeyError), AttrScope(a="1"):
        raise KeyError
    assert AttrScope.current().get({}) == {}


def test_scopes_belong_to_their_thread():
    seen = []
    with AttrScope(a="1"):
        thread = threading.Thread(target=lambda: seen.append(AttrScope.current().get({})))
        thread.start()
        thread.join()
    assert seen == [{}]


@pytest.mark.parametrize("key", HIDDEN)
def test_hidden_keys_are_found_under_both_names(key):
    stored = AttrScope(**{key: "1"}).get(None)
    assert stored == {f"__{key}__": "1"}
    for attrs in (stored, {key: "1"}):
        assert lookup(attrs, key) == lookup(attrs, f"__{key}__") == "1"
    assert lookup({}, key) is None


def test_other_keys_have_one_spelling():
    assert hide("mood") == "mood"
    assert lookup({"__mood__": "so so"}, "mood") is None
    assert lookup({"__mood__": "so so"}, "__mood__") == "so so"


def test_explicit_overrides_scope_under_the_other_spelling():
    with AttrScope(ctx_group="a"):
        assert AttrScope.current().get({"__ctx_group__": "b"}) == {"__ctx_group__": "b"}


def test_only_underscored_attributes_are_handed_down():
    assert inherited({"__mood__": "so so", "ctx_group": "embed", "kernel": "(3, 3)"}) == {
        "__mood__": "so so",
        "__ctx_group__": "embed",
    }


def test_values_are_strings():
    with pytest.raises(
        ValueError, match=r"'ctx_group' must be a string, not int: write ctx_gr.*'1"
    ):
        AttrScope(ctx_group=1)
    with pytest.raises(GraphError, match="'lr_mult' must be a string, not float"):
        AttrScope().get({"lr_mult": 0.5})


def test_two_spellings_with_two_values_are_refused():
    with pytest.raises(GraphError, match=r"given as 'a' and as 'b'"):
        canonical({"ctx_group": "a", "__ctx_group__": "b"})
    assert canonical({"ctx_group": "a", "__ctx_group__": "a"}) == {"__ctx_group__": "a"}
