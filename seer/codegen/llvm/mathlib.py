"""exp, log, tanh, erf, sigmoid and pow on scalars and vectors.

float32 functions are our own and run in all lanes at once; scripts/fit_math.py makes their
polynomials. Largest error over all float32 inputs, in units in the last place: exp 0.88 (0.97 without
fused multiply-add), log 0.83, tanh 1.31, erf 1.08 (1.32 without), sigmoid 2.41; of pow over samples 0.51
(tests/test_mathlib.py, tests/test_processors.py). sqrt is rounded correctly. Infinities, NaNs, signed
zeros and denormal numbers are handled as C does. Every float64 function is the C library's, lane by
lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from seer.codegen.llvm.builder import Builder, Val, value_type

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
    -0.333333283662796, 0.1333313286304474, -0.05393746495246887, 0.021650144830346107,
    -0.00805392861366272, 0.002031737007200718,
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

# Series, in float64, for a float32 result: 2 / ln(2) * s**2k / (2k + 1), and (r * ln(2))**k / k!.
_ATANH = tuple(2 / math.log(2) / (2 * k + 1) for k in range(7))
_EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(10))
_ROUND_DOUBLE = 1.5 * 2**52
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD  # of sqrt(1/2)

# Adding 1.5 * 2**23 rounds a small float n to a whole number in the low bits; so these hold n + 254.
_ROUND = 12582912.0 + 254
_SCALE_BITS = {4: 128, 8: 256, 16: 512}  # lanes of float32: the width of the instruction
_LN2_HIGH = 0.693145751953125  # 16 bits, so that a product with a whole number below 2**8 is exact
_LN2_LOW = 1.428606765330187e-06


def _f(b: Builder, value: float) -> Val:
    return b.constant(value, "float32")


def _i(b: Builder, value: int) -> Val:
    return b.constant(value, "int32")


def _l(b: Builder, value: int) -> Val:
    return b.constant(value, "int64")


def _polynomial(b: Builder, x: Val, coefficients: tuple[float, ...]) -> Val:
    """Horner's rule, lowest power first."""
    out = _f(b, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out = b.fma(out, x, _f(b, c))
    return out


def _abs(b: Builder, x: Val) -> Val:
    return b.intrinsic("fabs", x)


def _copysign(b: Builder, magnitude: Val, sign: Val) -> Val:
    return b.intrinsic("copysign", magnitude, sign)


def exp(b: Builder, x: Val) -> Val:
    """2**n * e**r with n whole and |r| <= ln(2) / 2."""
    x = b.select(b.compare("ogt", x, _f(b, 89.0)), _f(b, 89.0), x)  # a NaN stays
    x = b.select(b.compare("olt", x, _f(b, -104.0)), _f(b, -104.0), x)
    rounded = b.fma(x, _f(b, 1.4426950408889634), _f(b, _ROUND))
    n = b.op("fsub", rounded, _f(b, _ROUND))
    r = b.fma(n, _f(b, -_LN2_HIGH), x)
    r = b.fma(n, _f(b, -_LN2_LOW), r)
    if b.target.has_fma:
        p = _polynomial(b, r, (1.0, 1.0, *_EXP))
    else:  # the largest terms last: each is rounded twice
        p = b.op("fadd", b.fma(b.op("fmul", r, r), _polynomial(b, r, _EXP), r), _f(b, 1.0))
    if b.target.has_scale and x.lanes in _SCALE_BITS:
        return _scale(b, p, n)
    # Two factors, since 2**128 and 2**-150 are no floats; the exponent of each is a half of n + 254.
    both = b.bitcast(rounded, "int32")
    half = b.op("lshr", both, _i(b, 1))
    p = b.op("fmul", p, _power_of_two(b, half))
    return b.op("fmul", p, _power_of_two(b, b.op("sub", both, half)))


def _power_of_two(b: Builder, biased: Val) -> Val:
    """2**(n - 127), where n is the low nine bits and below 255."""
    return b.bitcast(b.op("shl", biased, _i(b, 23)), "float32")


def _scale(b: Builder, x: Val, n: Val) -> Val:
    """X * 2**n for a whole n, rounded once, by one instruction."""
    bits = _SCALE_BITS[x.lanes]
    name = f"llvm.x86.avx512.mask.scalef.ps.{bits}"
    mask = f"i{max(8, x.lanes)}"
    kind, mode = (", i32", " 4") if bits == 512 else ("", "")  # 4: the rounding that is set
    b.declare(name, f"{x.type} %s({x.type}, {x.type}, {x.type}, {mask}{kind})")
    operands = f"{x.operand}, {n.operand}, {x.type} zeroinitializer, {mask} -1{kind}{mode}"
    return Val(b.inst(f"call {x.type} @{name}({operands})"), x.dtype, x.lanes)


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
    p = b.fma(exponent, _f(b, _LN2_LOW), p)
    p = b.fma(square, _f(b, -0.5), p)
    y = b.fma(exponent, _f(b, _LN2_HIGH), b.op("fadd", f, p))
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
    near = b.fma(b.op("fmul", square, x), _polynomial(b, square, _TANH), x)
    grown = exp(b, b.op("fadd", size, size))
    far = b.op("fdiv", _f(b, 2.0), b.op("fadd", grown, _f(b, 1.0)))
    far = _copysign(b, b.op("fsub", _f(b, 1.0), far), x)
    return b.select(b.compare("olt", size, _f(b, 0.66)), near, far)


def erf(b: Builder, x: Val) -> Val:
    """A polynomial near zero, 1 - exp(-t - t P(t)) with t = min(|x|, 4) elsewhere."""
    size = _abs(b, x)
    square = b.op("fmul", x, x)
    near = b.fma(x, _polynomial(b, square, _ERF_NEAR), x)
    t = b.select(b.compare("ogt", size, _f(b, 4.0)), _f(b, 4.0), size)
    power = b.fma(t, _polynomial(b, t, _ERF_FAR), t)
    far = b.op("fsub", _f(b, 1.0), exp(b, Val(b.inst(f"fneg {power.operand}"), "float32", power.lanes)))
    return b.select(b.compare("olt", size, _f(b, 0.9)), near, _copysign(b, far, x))


def sigmoid(b: Builder, x: Val) -> Val:
    """1 / (1 + e) with e = exp(-|x|), or e / (1 + e) below zero: nothing overflows."""
    one, size = b.constant(1.0, x.dtype), _abs(b, x)
    e = MATH["exp"](b, Val(b.inst(f"fneg {size.operand}"), x.dtype, x.lanes))
    above = b.select(b.compare("olt", x, b.constant(0.0, x.dtype)), e, one)
    return b.op("fdiv", above, b.op("fadd", e, one))


def pow(b: Builder, x: Val, y: Val) -> Val:
    """2**(y * log2(|x|)) in float64, which leaves one rounding, and the sign and NaNs of C's powf."""
    size, power = _widen(b, _abs(b, x)), _widen(b, y)
    out = _exp2(b, b.op("fmul", power, _log2(b, size)))
    out = Val(b.inst(f"fptrunc {out.operand} to {x.type}"), "float32", x.lanes)

    one, zero = _f(b, 1.0), _f(b, 0.0)
    is_whole = b.compare("oeq", b.floor(y), y)
    half = b.op("fmul", y, _f(b, 0.5))
    is_odd = b.op("and", is_whole, b.compare("one", b.floor(half), half))
    is_minus = b.compare("slt", b.bitcast(x, "int32"), _i(b, 0))  # also for -0
    negated = Val(b.inst(f"fneg {out.operand}"), "float32", out.lanes)
    out = b.select(b.op("and", is_minus, is_odd), negated, out)
    is_root = b.op("and", b.compare("olt", x, zero), b.compare("one", b.floor(y), y))
    is_root = b.op("and", is_root, b.compare("ogt", x, _f(b, float("-inf"))))
    out = b.select(is_root, _nan(b), out)
    # One to any power, anything to the power of zero and -1 to an infinite one are 1, NaNs included.
    is_one = b.op("or", b.compare("oeq", x, one), b.compare("oeq", y, zero))
    endless = b.compare("oeq", _abs(b, y), _f(b, float("inf")))
    is_one = b.op("or", is_one, b.op("and", b.compare("oeq", x, _f(b, -1.0)), endless))
    return b.select(is_one, one, out)


def _d(b: Builder, value: float) -> Val:
    return b.constant(value, "float64")


def _widen(b: Builder, x: Val) -> Val:
    to = value_type("float64", x.lanes)
    return Val(b.inst(f"fpext {x.operand} to {to}"), "float64", x.lanes)


def _series(b: Builder, x: Val, coefficients: tuple[float, ...]) -> Val:
    """Horner's rule in float64; exact enough unfused, which processors without FMA do far faster."""
    out = _d(b, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        out = b.op("fadd", b.op("fmul", out, x), _d(b, c))
    return out


def _log2(b: Builder, x: Val) -> Val:
    """E + 2 / ln(2) * atanh(f / (2 + f)) for the float64 x = 2**e * (1 + f), not negative nor denormal."""
    bits = b.op("sub", b.bitcast(x, "int64"), _l(b, _ROOT_HALF_BITS))
    e = b.op("ashr", bits, _l(b, 52))
    mantissa = b.op("add", b.op("and", bits, _l(b, (1 << 52) - 1)), _l(b, _ROOT_HALF_BITS))
    f = b.op("fsub", b.bitcast(mantissa, "float64"), _d(b, 1.0))
    s = b.op("fdiv", f, b.op("fadd", f, _d(b, 2.0)))
    square = b.op("fmul", s, s)
    p = _series(b, square, _ATANH)
    # Through 32 bits: every processor converts those to float64 in one instruction.
    small = Val(b.inst(f"trunc {e.operand} to {value_type('int32', e.lanes)}"), "int32", e.lanes)
    exponent = Val(b.inst(f"sitofp {small.operand} to {f.type}"), "float64", f.lanes)
    out = b.op("fadd", b.op("fmul", s, p), exponent)
    infinity = _d(b, float("inf"))
    out = b.select(b.compare("oeq", x, _d(b, 0.0)), _d(b, float("-inf")), out)
    out = b.select(b.compare("oeq", x, infinity), infinity, out)
    return b.select(b.compare("uno", x, x), x, out)


def _exp2(b: Builder, x: Val) -> Val:
    """2**n * e**(r * ln(2)) in float64 with n whole and |r| <= 1/2; beyond 2**200 it stays there."""
    x = b.select(b.compare("ogt", x, _d(b, 200.0)), _d(b, 200.0), x)  # a NaN stays
    x = b.select(b.compare("olt", x, _d(b, -200.0)), _d(b, -200.0), x)
    rounded = b.op("fadd", x, _d(b, _ROUND_DOUBLE))
    r = b.op("fsub", x, b.op("fsub", rounded, _d(b, _ROUND_DOUBLE)))
    p = _series(b, r, _EXP2)
    shifted = b.op("add", b.op("shl", b.bitcast(rounded, "int64"), _l(b, 52)), _l(b, 1023 << 52))
    return b.op("fmul", p, b.bitcast(shifted, "float64"))


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
    "pow": _by_dtype("pow", pow),
}
