"""Every kernel as CuPy compiles and loads it, on a card."""

from __future__ import annotations

import pytest

from runtime.backends.device import arrays
from symgraph import gpu
from symgraph.core.errors import PlacementError
from tests.runtime.backends.cuda.emulation import signatures
from tests.runtime.backends.cuda.sources import SOURCES, variants


@pytest.mark.gpu
@pytest.mark.parametrize("source", SOURCES)
def test_sources_are_loaded(source):
    try:
        here = arrays.device(gpu(0))
    except PlacementError as error:
        pytest.skip(str(error))
    with here.use():
        for code, options in variants(source):
            module = here.xp.RawModule(code=code, options=options)
            for signature in signatures(code, options):
                assert module.get_function(signature.name).kernel
