"""The garbage collector's pause: planning and binding make no cycles, but a great many objects.

Looking through all of them again and again takes a third of the time that a long network's plan
takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """No collections meanwhile; they go on afterwards if they went on before."""
    going_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if going_on:
            gc.enable()
