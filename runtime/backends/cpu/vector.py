"""Functions for compiled loops that LLVM vectorises: exp, sigmoid, tanh, expm1 and erf.

numba calls the C library for these, one number at a time. Here e^x is 2^n e^r with n the nearest
integer to x / ln 2, and e^r - 1 is a Taylor polynomial in |r| <= ln 2 / 2: no branch, no table, no
conversion to integers, so NaN goes through and a loop over an array becomes vector code. erf is
its Taylor polynomial up to 1, and then 1 - e^-x^2 q with a Chebyshev polynomial q. The
functions are compiled with flags of their own: a caller that lets sums be reordered does not
reorder what is exact here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba.extending import intrinsic, overload
from numpy.polynomial import chebyshev

from runtime.backends.device.compile import FAST

OPTIONS: Any = {"fastmath": FAST, "error_model": "numpy", "forceinline": True}
# ln 2 in two parts; the first has few bits, so that its product with n is exact.
LN2_HIGH = 355 / 512
LN2_LOW = -2.121944400546905827679e-4


def exp(x: Any) -> Any:
    """Compute e^x, in compiled code to 1.2e-7 (float32) or 4e-16 (float64) of the value."""
    return np.exp(x)


def sigmoid(x: Any) -> Any:
    """Compute 1 / (1 + e^-x), in compiled code to 2e-7 (float32) or 5e-16 (float64) of the value.

    Values below the smallest normal number may come as 0.
    """
    return 1 / (1 + np.exp(-x))


def tanh(x: Any) -> Any:
    """Compute tanh x, in compiled code to 2e-7 (float32) or 5e-16 (float64), also near 0."""
    return np.tanh(x)


def expm1(x: Any) -> Any:
    """Compute e^x - 1, in compiled code to 2e-7 (float32) or 4e-16 (float64), also near 0."""
    return np.expm1(x)


def erf(x: Any) -> Any:
    """Compute erf x, in compiled code to 3e-7 (float32) or 3e-15 (float64) of the value."""
    return math.erf(x)


def erfcx_polynomial(top: float, degree: int) -> list[float]:
    """Fit e^x^2 (1 - erf x) for x from 1 to top, in powers of x scaled to -1 ... 1."""
    middle, half = (top + 1) / 2, (top - 1) / 2

    def at(scaled: Any) -> Any:
        return np.array([math.exp(x * x) * math.erfc(x) for x in scaled * half + middle])

    coefficients: list[float] = chebyshev.cheb2poly(chebyshev.chebinterpolate(at, degree)).tolist()
    return coefficients


def _power_of_two(context: Any, shifted: Any) -> Any:
    """Compute 2^n from n + 1.5 * 2^m, m being the bits of the fraction: its last bits hold n.

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
    """Compile a part of the functions here, with their flags."""
    inner: Function = numba.njit(**OPTIONS)(function)
    return inner


def polynomial(number: Any, powers: Sequence[float]) -> Function:
    """Return the sum of powers[k] x^k: even and odd terms apart, short enough to be unrolled."""
    even, odd = (tuple(map(number, powers[start::2][::-1])) for start in (0, 1))

    @compiled
    def of(x: Any) -> Any:
        square, a, b = x * x, even[0], odd[0]
        for term in even[1:]:
            a = a * square + term
        for term in odd[1:]:
            b = b * square + term
        return a + b * x

    return of


def error_function(number: Any, parts: Function, top: int, degrees: tuple[int, int]) -> Function:
    """Return erf for one float type.

    Args:
        number: The type.
        parts: The parts of e^x; see `family`.
        top: Where erf becomes 1.
        degrees: Of the polynomial in x^2 up to 1, and of the one from 1 to the top.
    """
    taylor = [
        (-1) ** k * 2 / math.sqrt(math.pi) / (math.factorial(k) * (2 * k + 1))
        for k in range(degrees[0] + 1)
    ]
    small = polynomial(number, taylor)
    large = polynomial(number, erfcx_polynomial(top, degrees[1]))
    edge, middle, per_half = number(top), number((top + 1) / 2), number(2 / (top - 1))
    one = number(1)

    def erf(x: Any) -> Any:
        z = min(abs(x), edge)
        square = z * z
        p, shifted = parts(-square)
        far = one - (p + one) * power_of_two(shifted) * large((z - middle) * per_half)
        return math.copysign(small(square) * z if z < one else far, x)

    return erf


def exponential_parts(number: Any, degree: int, shift: Any) -> Function:
    """Compile the function from x to p and n + shift with e^x = (1 + p) 2^n.

    Args:
        number: The float type.
        degree: The degree of the polynomial for e^r, r = x - n ln 2.
        shift: The number whose addition rounds to an integer.
    """
    per_ln2, high, low = number(1 / math.log(2)), number(LN2_HIGH), number(LN2_LOW)
    first = number(1 / math.factorial(degree))
    terms = tuple([number(1 / math.factorial(k)) for k in range(degree - 1, 1, -1)])

    @compiled
    def parts(x: Any) -> Any:
        shifted = x * per_ln2 + shift
        n = shifted - shift
        r = x - n * high - n * low
        p = first
        for term in terms:
            p = p * r + term
        return p * r * r + r, shifted

    return parts


def family(number: Any, degree: int, *erf: Any) -> list[Function]:
    """Return exp, sigmoid, tanh, expm1 and erf for one float type.

    Args:
        number: The type.
        degree: Of the polynomial for e^r.
        erf: The further arguments of `error_function`.
    """
    info = np.finfo(number)
    shift = number(1.5 * 2.0**info.nmant)  # adding it rounds to an integer
    half, one, two = number(0.5), number(1), number(2)
    top = number((info.maxexp + 0.4) * math.log(2))  # n is info.maxexp at most
    bottom = number((info.minexp - info.nmant - 2) * math.log(2))  # below half a denormal number
    normal = number((info.minexp - 1.4) * math.log(2))  # n is info.minexp - 1 at least
    flat = number(2 * info.nmant)  # tanh is 1 from its half on
    parts = exponential_parts(number, degree, shift)

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
        """Compute m / (m + 2) with m = e^2|x| - 1, exact near 0, with the sign of x."""
        twice = abs(x) + abs(x)
        p, shifted = parts(min(twice, flat))
        power = power_of_two(shifted)
        m = p * power + (power - one)
        return math.copysign(m / (m + two), x)

    def expm1(x: Any) -> Any:
        p, shifted = parts(min(max(x, normal), top))
        power = power_of_two(shifted)
        return p * power + (power - one)

    return [exp, sigmoid, tanh, expm1, error_function(number, parts, *erf)]


FAMILIES = {
    numba.float32: family(np.float32, 7, 4, (9, 10)),
    numba.float64: family(np.float64, 13, 6, (19, 25)),
}


def _offer(function: Function, index: int) -> None:
    def choose(x: Any) -> Function | None:
        return FAMILIES[x][index] if x in FAMILIES else None

    overload(function, jit_options=OPTIONS)(choose)


for at, offered in enumerate((exp, sigmoid, tanh, expm1, erf)):
    _offer(offered, at)


# -- choices -----------------------------------------------------------------------------------


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Choose between two values that are both computed, so that LLVM can vectorise the loop."""
    return yes if condition else no


def minimum(x: Any, y: Any) -> Any:
    """Return the smaller value; NaN if x is NaN."""
    return x if x <= y or x != x else y


def _inline(function: Callable[..., Any]) -> None:
    overload(function, jit_options=OPTIONS, strict=False)(lambda *kinds: function)


_inline(where)
_inline(minimum)
