"""exp, log, tanh, erf, sigmoid and pow on scalars and vectors.

float32 functions are our own and run in all lanes at once; scripts/fit_math.py makes their
polynomials. Largest error over all float32 inputs, in units in the last place (tests/test_mathlib.py
measures it): exp 1.0, log 0.8, tanh 1.3, erf 1.1, sigmoid 2.2. Infinities, NaNs, signed zeros and
denormal numbers are handled as C does. pow, and every float64 function, is the C library's, lane by
lane.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from seer.codegen.llvm.builder import Builder, Val

# Builder, then the operands, all with the same lanes.
MathFunction = Callable[..., Val]

# fmt: off
_EXP = (
    0.5, 0.1666666716337204, 0.041666265577077866, 0.008333269506692886, 0.0013946251710876822,
    0.00019915594020858407,
)
_LOG = (
    0.3333331048488617, -0.24999986588954926, 0.20002226531505585, -0.16669249534606934,
    0.14218655228614807, -0.12384368479251862, 0.11873013526201248, -0.11789704859256744,
    0.06915164738893509,
)
_TANH = (
    -0.3333333134651184, 0.13333210349082947, -0.05394720286130905, 0.0217029619961977,
    -0.008182661607861519, 0.002147526713088155,
)
_ERF_NEAR = (
    0.12837916612625122, -0.37612634897232056, 0.11283719539642334, -0.026860753074288368,
    0.005204435903578997, -0.0008181925513781607, 8.538831025362015e-05,
)
_ERF_FAR = (
    0.1285448968410492, 0.635656476020813, 0.10520295053720474, -0.02261205017566681,
    0.0028923265635967255, -3.6074347008252516e-05, -4.8200305172940716e-05, 5.150719516677782e-06,
)
# fmt: on

_ROUND = 12582912.0  # 1.5 * 2**23: adding it rounds a small float to a whole number in its low bits
_ROUND_BITS = 0x4B400000
_LN2_HIGH = 0.693145751953125  # 16 bits, so that a product with a whole number below 2**8 is exact
_LN2_LOW = 1.428606765330187e-06


def _f(b: Builder, value: float) -> Val:
    return b.constant(value, "float32")


def _i(b: Builder, value: int) -> Val:
    return b.constant(value, "int32")


def _fma(b: Builder, x: Val, y: Val, z: Val) -> Val:
    return b.intrinsic("fma", x, y, z)


def _polynomial(b: Builder, x: Val, coefficients: tuple[float, ...]) -> Val:
    """Horner's rule, lowest power first."""
    out = _f(b, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out = _fma(b, out, x, _f(b, c))
    return out


def _abs(b: Builder, x: Val) -> Val:
    return b.intrinsic("fabs", x)


def _copysign(b: Builder, magnitude: Val, sign: Val) -> Val:
    return b.intrinsic("copysign", magnitude, sign)


def exp(b: Builder, x: Val) -> Val:
    """2**n * e**r with n whole and |r| <= ln(2) / 2."""
    x = b.select(b.compare("ogt", x, _f(b, 89.0)), _f(b, 89.0), x)  # a NaN stays
    x = b.select(b.compare("olt", x, _f(b, -104.0)), _f(b, -104.0), x)
    rounded = _fma(b, x, _f(b, 1.4426950408889634), _f(b, _ROUND))
    n = b.op("fsub", rounded, _f(b, _ROUND))
    r = _fma(b, n, _f(b, -_LN2_HIGH), x)
    r = _fma(b, n, _f(b, -_LN2_LOW), r)
    p = _fma(b, b.op("fmul", r, r), _polynomial(b, r, _EXP), r)
    p = b.op("fadd", p, _f(b, 1.0))
    # Two factors, since 2**128 and 2**-150 are no floats.
    whole = b.op("sub", b.bitcast(rounded, "int32"), _i(b, _ROUND_BITS))
    half = b.op("ashr", whole, _i(b, 1))
    p = b.op("fmul", p, _power_of_two(b, half))
    return b.op("fmul", p, _power_of_two(b, b.op("sub", whole, half)))


def _power_of_two(b: Builder, n: Val) -> Val:
    return b.bitcast(b.op("shl", b.op("add", n, _i(b, 127)), _i(b, 23)), "float32")


def log(b: Builder, x: Val) -> Val:
    """E * ln(2) + ln(1 + f) with x = 2**e * (1 + f) and sqrt(1/2) <= 1 + f < sqrt(2)."""
    tiny = b.compare("olt", x, _f(b, 1.1754943508222875e-38))
    scaled = b.select(tiny, b.op("fmul", x, _f(b, 8388608.0)), x)
    shift = b.select(tiny, _f(b, -23.0), _f(b, 0.0))
    bits = b.op("sub", b.bitcast(scaled, "int32"), _i(b, 0x3F3504F3))
    e = b.op("ashr", bits, _i(b, 23))
    mantissa = b.op("add", b.op("and", bits, _i(b, 0x7FFFFF)), _i(b, 0x3F3504F3))
    f = b.op("fsub", b.bitcast(mantissa, "float32"), _f(b, 1.0))
    exponent = Val(b.inst(f"sitofp {e.operand} to {f.type}"), "float32", f.lanes)
    exponent = b.op("fadd", exponent, shift)
    square = b.op("fmul", f, f)
    p = b.op("fmul", b.op("fmul", f, square), _polynomial(b, f, _LOG))
    p = _fma(b, exponent, _f(b, _LN2_LOW), p)
    p = _fma(b, square, _f(b, -0.5), p)
    y = _fma(b, exponent, _f(b, _LN2_HIGH), b.op("fadd", f, p))
    infinity = _f(b, float("inf"))
    y = b.select(b.compare("oeq", x, infinity), infinity, y)
    y = b.select(b.compare("oeq", x, _f(b, 0.0)), _f(b, float("-inf")), y)
    return b.select(b.compare("uge", x, _f(b, 0.0)), b.select(b.compare("uno", x, x), x, y), _nan(b))


def _nan(b: Builder) -> Val:
    return _f(b, float("nan"))


def tanh(b: Builder, x: Val) -> Val:
    """A polynomial near zero, 1 - 2 / (exp(2 |x|) + 1) elsewhere."""
    size = _abs(b, x)
    square = b.op("fmul", x, x)
    near = _fma(b, b.op("fmul", square, x), _polynomial(b, square, _TANH), x)
    grown = exp(b, b.op("fadd", size, size))
    far = b.op("fdiv", _f(b, 2.0), b.op("fadd", grown, _f(b, 1.0)))
    far = _copysign(b, b.op("fsub", _f(b, 1.0), far), x)
    return b.select(b.compare("olt", size, _f(b, 0.625)), near, far)


def erf(b: Builder, x: Val) -> Val:
    """A polynomial near zero, 1 - exp(-t - t P(t)) with t = min(|x|, 4) elsewhere."""
    size = _abs(b, x)
    square = b.op("fmul", x, x)
    near = _fma(b, x, _polynomial(b, square, _ERF_NEAR), x)
    t = b.select(b.compare("ogt", size, _f(b, 4.0)), _f(b, 4.0), size)
    power = _fma(b, t, _polynomial(b, t, _ERF_FAR), t)
    far = b.op("fsub", _f(b, 1.0), exp(b, Val(b.inst(f"fneg {power.operand}"), "float32", power.lanes)))
    return b.select(b.compare("olt", size, _f(b, 0.9)), near, _copysign(b, far, x))


def sigmoid(b: Builder, x: Val) -> Val:
    """1 / (1 + e) with e = exp(-|x|), or e / (1 + e) below zero: nothing overflows."""
    one, size = b.constant(1.0, x.dtype), _abs(b, x)
    e = MATH["exp"](b, Val(b.inst(f"fneg {size.operand}"), x.dtype, x.lanes))
    above = b.select(b.compare("olt", x, b.constant(0.0, x.dtype)), e, one)
    return b.op("fdiv", above, b.op("fadd", e, one))


def _libm(name: str) -> MathFunction:
    """The C library's function, lane by lane."""

    def call(b: Builder, *args: Val) -> Val:
        kind = args[0].dtype
        symbol = name + ("f" if kind == "float32" else "")
        scalar = "float" if kind == "float32" else "double"
        b.declare(symbol, f"{scalar} %s({', '.join(scalar for _ in args)})")
        lanes = []
        for k in range(args[0].lanes):
            passed = ", ".join(b.extract(a, k).operand for a in args)
            lanes.append(Val(b.inst(f"call {scalar} @{symbol}({passed})"), kind))
        return lanes[0] if len(lanes) == 1 else b.gather(lanes)

    return call


def _by_dtype(name: str, single: MathFunction) -> MathFunction:
    double = _libm(name)

    def choose(b: Builder, *args: Any) -> Val:
        return (single if args[0].dtype == "float32" else double)(b, *args)

    return choose


MATH: dict[str, MathFunction] = {
    "exp": _by_dtype("exp", exp),
    "log": _by_dtype("log", log),
    "tanh": _by_dtype("tanh", tanh),
    "erf": _by_dtype("erf", erf),
    "sigmoid": sigmoid,
    "pow": _libm("pow"),
}
