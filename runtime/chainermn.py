"""The public name of runtime.frontends.chainermn: `from runtime.chainermn import ...`."""

import sys

from runtime.frontends import chainermn
from runtime.frontends.chainermn import *  # noqa: F403 (its __all__)

sys.modules[__name__] = chainermn
