"""Automatic names."""

from __future__ import annotations

import threading

from symgraph.frontend.name import NameManager, Prefix


def build() -> list[str]:
    asked = [
        (None, "FullyConnected"),
        (None, "Activation"),
        ("mine", "Activation"),
        (None, "fullyconnected"),
    ]
    return [NameManager.current().get(name, hint) for name, hint in asked]


def test_lower_case_hint_and_counter():
    with NameManager():
        assert build() == ["fullyconnected0", "activation0", "mine", "fullyconnected1"]


def test_fresh_managers_give_the_same_names():
    with NameManager():
        first = build()
    with NameManager():
        assert build() == first


def test_a_manager_counts_on_when_used_again():
    manager = NameManager()
    with manager:
        assert NameManager.current().get(None, "dot") == "dot0"
    with manager:
        assert NameManager.current().get(None, "dot") == "dot1"


def test_prefix_goes_before_all_names():
    with NameManager() as outer:
        with Prefix("net_"):
            assert build()[:3] == ["net_fullyconnected0", "net_activation0", "net_mine"]
        assert NameManager.current() is outer
        assert outer.get(None, "FullyConnected") == "fullyconnected0"


def test_the_default_manager_outlives_a_block():
    before = NameManager.current()
    with NameManager():
        assert NameManager.current() is not before
    assert NameManager.current() is before


def test_each_thread_counts_by_itself():
    seen = []

    def count():
        seen.append([NameManager.current().get(None, "dot") for _ in range(2)])

    for thread in [threading.Thread(target=count) for _ in range(2)]:
        thread.start()
        thread.join()
    assert seen == [["dot0", "dot1"]] * 2
