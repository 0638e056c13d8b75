"""Fixtures of tests that run on GPUs."""

from __future__ import annotations

import pytest

from tests.gpus import KINDS, shared_card


@pytest.fixture(params=KINDS)
def shared_gpu(request, monkeypatch):
    """Any number of contexts on one card."""
    with shared_card(request.param, monkeypatch):
        yield
