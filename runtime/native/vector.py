"""Vector functions for compiled loops: exp, sigmoid, tanh, expm1 and erf, such as LLVM vectorises.

numba calls the C library for them, one number at a time. Here e^x is 2^n e^r with n the nearest
integer to x / ln 2, and e^r - 1 is a Taylor polynomial in |r| <= ln 2 / 2: no branch, no table, no
conversion to integers, so NaN goes through and a loop over an array becomes vector code. erf is two
rational functions, both of which are computed for every x. The functions are compiled with flags of
their own: a caller that lets sums be reordered does not reorder what is exact here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic, overload

from runtime.native.base import FAST

OPTIONS: Any = {"fastmath": FAST, "error_model": "numpy", "forceinline": True}
# ln 2 in two parts; the first has few bits, so that its product with n is exact.
LN2_HIGH = 355 / 512
LN2_LOW = -2.121944400546905827679e-4
# erf x = x T(x^2) / U(x^2) up to 1 and 1 - e^(-x^2) P(x) / Q(x) beyond: Moshier, Cephes, ndtr.c.
ERF_T = (
    9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3,
    7.00332514112805075473e3, 5.55923013010394962768e4,
)  # fmt: skip
ERF_U = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3,
    2.26290000613890934246e4, 4.92673942608635921086e4,
)  # fmt: skip
ERF_P = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
    4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
    9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2,
)  # fmt: skip
ERF_Q = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
    9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
    1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
ERF_ONE = 6.0  # from here on erf is 1


def exp(x: Any) -> Any:
    """e^x, in compiled code to 1.2e-7 (float32) or 4e-16 (float64) of the value."""
    return np.exp(x)


def sigmoid(x: Any) -> Any:
    """1 / (1 + e^-x), in compiled code to 2e-7 (float32) or 5e-16 (float64) of the value.

    Values below the smallest normal number may come as 0.
    """
    return 1 / (1 + np.exp(-x))


def tanh(x: Any) -> Any:
    """tanh x, in compiled code to 2e-7 (float32) or 5e-16 (float64) of the value, also near 0."""
    return np.tanh(x)


def expm1(x: Any) -> Any:
    """e^x - 1, in compiled code to 2e-7 (float32) or 4e-16 (float64) of the value, also near 0."""
    return np.expm1(x)


def erf(x: Any) -> Any:
    """The error function, in compiled code to 2e-7 (float32) or 5e-16 (float64) of the value."""
    return math.erf(x)


def _power_of_two(context: Any, shifted: Any) -> Any:
    """2^n from n + 1.5 * 2^m, m bits being the fraction: n stands in its last bits.

    It is 0 for n one below, and infinite for n one above the exponents of normal numbers.
    """
    sizes: Any = {
        numba.float32: (numba.int32, 23, 127),
        numba.float64: (numba.int64, 52, 1023),
    }
    same_size, fraction, bias = sizes[shifted]

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = context.get_value_type(same_size)
        n = builder.shl(builder.bitcast(args[0], whole), whole(fraction))
        return builder.bitcast(builder.add(n, whole(bias << fraction)), args[0].type)

    return shifted(shifted), build


power_of_two: Any = intrinsic(_power_of_two)
Function = Callable[[Any], Any]


def compiled(function: Function) -> Function:
    """A part of the functions here, with their flags."""
    inner: Function = numba.njit(**OPTIONS)(function)
    return inner


def polynomial(number: Any, terms: Sequence[float]) -> Function:
    """Of the coefficients, that of the highest power first."""
    first, rest = number(terms[0]), tuple(map(number, terms[1:]))

    @compiled
    def value(x: Any) -> Any:
        p = first
        for term in rest:
            p = p * x + term
        return p

    return value


def error_function(number: Any, exp: Function) -> Function:
    """erf for one float type."""
    t, u, p, q = (polynomial(number, terms) for terms in (ERF_T, ERF_U, ERF_P, ERF_Q))
    one, top = number(1), number(ERF_ONE)

    def erf(x: Any) -> Any:
        size = min(abs(x), top)
        square = size * size
        near = size * t(square) / u(square)
        far = one - exp(-square) * p(size) / q(size)
        return math.copysign(near if size < one else far, x)

    return erf


def family(number: Any, degree: int) -> tuple[Function, ...]:
    """exp, sigmoid, tanh, expm1 and erf for one float type, with e^r of this degree."""
    info = np.finfo(number)
    shift = number(1.5 * 2.0**info.nmant)  # adding it rounds to an integer
    per_ln2, high, low = number(1 / math.log(2)), number(LN2_HIGH), number(LN2_LOW)
    first = number(1 / math.factorial(degree))
    terms = tuple([number(1 / math.factorial(k)) for k in range(degree - 1, 1, -1)])
    half, one, two = number(0.5), number(1), number(2)
    top = number((info.maxexp + 0.4) * math.log(2))  # n is info.maxexp at most
    bottom = number((info.minexp - info.nmant - 2) * math.log(2))  # below half a denormal number
    normal = number((info.minexp - 1.4) * math.log(2))  # n is info.minexp - 1 at least
    flat = number(2 * info.nmant)  # tanh is 1 from its half on

    @compiled
    def parts(x: Any) -> Any:
        """p and n + shift for e^x = (1 + p) 2^n."""
        shifted = x * per_ln2 + shift
        n = shifted - shift
        r = x - n * high - n * low
        p = first
        for term in terms:
            p = p * r + term
        return p * r * r + r, shifted

    def exp(x: Any) -> Any:
        p, shifted = parts(min(max(x, bottom), top))
        n = shifted - shift  # in two steps, because 2^n may be out of range where e^x is not
        near = n * half + shift
        rest = n - (near - shift) + shift
        return (p + one) * power_of_two(near) * power_of_two(rest)

    def sigmoid(x: Any) -> Any:
        p, shifted = parts(min(max(-x, normal), top))
        return one / (one + (p + one) * power_of_two(shifted))

    def tanh(x: Any) -> Any:
        """m / (m + 2) with m = e^2|x| - 1, without cancellation near 0, and the sign of x."""
        twice = abs(x) + abs(x)
        p, shifted = parts(min(twice, flat))
        power = power_of_two(shifted)
        m = p * power + (power - one)
        return math.copysign(m / (m + two), x)

    def expm1(x: Any) -> Any:
        p, shifted = parts(min(max(x, normal), top))
        power = power_of_two(shifted)
        return p * power + (power - one)

    return exp, sigmoid, tanh, expm1, error_function(number, compiled(exp))


FAMILIES = {numba.float32: family(np.float32, 7), numba.float64: family(np.float64, 13)}


def _offer(function: Function, index: int) -> None:
    def choose(x: Any) -> Function | None:
        return FAMILIES[x][index] if x in FAMILIES else None

    overload(function, jit_options=OPTIONS)(choose)


for at, offered in enumerate((exp, sigmoid, tanh, expm1, erf)):
    _offer(offered, at)
