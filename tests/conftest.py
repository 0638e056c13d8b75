"""Fixtures of tests that run on GPUs, and what the tests' processes inherit."""

from __future__ import annotations

import os

import pytest

from tests.helpers.gpus import KINDS, shared_card

# Unbuffered, a print is several writes, and a launcher may put another rank's between them.
os.environ.pop("PYTHONUNBUFFERED", None)
# Workers of xdist and the tests start hundreds of processes: each would compile all of our modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(params=KINDS)
def shared_gpu(request, monkeypatch):
    """Any number of contexts on one card."""
    with shared_card(request.param, monkeypatch):
        yield


@pytest.fixture
def groups(request, monkeypatch):
    """A map of groups to devices, which are there; see tests.helpers.gpus.everywhere."""
    kind, places = request.param
    if kind is None:
        yield places
        return
    with shared_card(kind, monkeypatch):
        yield places
