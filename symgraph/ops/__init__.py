"""Operators, one file per family; importing this package registers all of them.

May import core.
Start reading: softmax.py; formulas.py has the element-wise operators.
"""

from symgraph.ops import attention as attention
from symgraph.ops import batch_dot as batch_dot
from symgraph.ops import boxes as boxes
from symgraph.ops import broadcasts as broadcasts
from symgraph.ops import choice as choice
from symgraph.ops import constants as constants
from symgraph.ops import conv as conv
from symgraph.ops import copies as copies
from symgraph.ops import crop as crop
from symgraph.ops import cross_entropy as cross_entropy
from symgraph.ops import ctc as ctc
from symgraph.ops import distributions as distributions
from symgraph.ops import draws as draws
from symgraph.ops import elementwise as elementwise
from symgraph.ops import gates as gates
from symgraph.ops import gather as gather
from symgraph.ops import index as index
from symgraph.ops import joins as joins
from symgraph.ops import leaky_relu as leaky_relu
from symgraph.ops import linalg as linalg
from symgraph.ops import linear as linear
from symgraph.ops import loss as loss
from symgraph.ops import messages as messages
from symgraph.ops import moments as moments
from symgraph.ops import movement as movement
from symgraph.ops import nn as nn
from symgraph.ops import normalize as normalize
from symgraph.ops import ordering as ordering
from symgraph.ops import penalty as penalty
from symgraph.ops import pool as pool
from symgraph.ops import random as random
from symgraph.ops import reduce as reduce
from symgraph.ops import regions as regions
from symgraph.ops import resize as resize
from symgraph.ops import sequence as sequence
from symgraph.ops import sharded as sharded
from symgraph.ops import slices as slices
from symgraph.ops import softmax as softmax
from symgraph.ops import spatial as spatial
from symgraph.ops import states as states
from symgraph.ops import unary as unary
