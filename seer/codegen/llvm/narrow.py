"""Conversions between float32 and the 16-bit floats, on scalars and vectors.

A 16-bit float is an i16 until it is converted. Where the processor has an instruction LLVM's own
conversion is used; elsewhere it is written out in integers, so that all lanes are done at once and
no library is called. Infinities, NaNs, signed zeros and denormal numbers are converted exactly, with
one exception: the bfloat16 instruction of x86 takes denormal numbers for zeros.
"""

from __future__ import annotations

from seer.codegen.llvm.builder import Builder, Val, value_type


def widen(b: Builder, v: Val) -> Val:
    """A float16 or bfloat16 as float32: exact."""
    if v.dtype == "bfloat16":
        return b.bitcast(b.op("shl", _whole(b, v), _i(b, 16)), "float32")
    if not b.target.has_float16:
        return _widen_half(b, v)
    half = _llvm_type("half", v.lanes)
    bits = b.inst(f"bitcast {v.operand} to {half}")
    return Val(b.inst(f"fpext {half} {bits} to {value_type('float32', v.lanes)}"), "float32", v.lanes)


def narrow(b: Builder, v: Val, dtype: str) -> Val:
    """A float32 as the nearest float16 or bfloat16, ties to even."""
    native = b.target.has_float16 if dtype == "float16" else b.target.has_bfloat16
    if not native:
        return (_narrow_half if dtype == "float16" else _narrow_bfloat)(b, v)
    short = _llvm_type("half" if dtype == "float16" else "bfloat", v.lanes)
    out = b.inst(f"fptrunc {v.operand} to {short}")
    return Val(b.inst(f"bitcast {short} {out} to {value_type(dtype, v.lanes)}"), dtype, v.lanes)


def _llvm_type(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def _i(b: Builder, value: int) -> Val:
    return b.constant(value, "int32")


def _whole(b: Builder, v: Val) -> Val:
    """The bits of a 16-bit float as int32."""
    return Val(b.inst(f"zext {v.operand} to {value_type('int32', v.lanes)}"), "int32", v.lanes)


def _short(b: Builder, v: Val, dtype: str) -> Val:
    """The low half of an int32."""
    return Val(b.inst(f"trunc {v.operand} to {value_type(dtype, v.lanes)}"), dtype, v.lanes)


def _narrow_bfloat(b: Builder, v: Val) -> Val:
    """The upper half, after adding what carries into it: 0x7FFF, and 1 if it is odd."""
    bits = b.bitcast(v, "int32")
    upper = b.op("lshr", bits, _i(b, 16))
    carry = b.op("add", b.op("and", upper, _i(b, 1)), _i(b, 0x7FFF))
    rounded = b.op("lshr", b.op("add", bits, carry), _i(b, 16))
    quiet = b.op("or", upper, _i(b, 0x40))
    return _short(b, b.select(b.compare("uno", v, v), quiet, rounded), "bfloat16")


def _widen_half(b: Builder, v: Val) -> Val:
    """Exponent and mantissa in a float32's place, times 2**112, which also makes denormals normal."""
    bits = _whole(b, v)
    size = b.op("shl", b.op("and", bits, _i(b, 0x7FFF)), _i(b, 13))
    scaled = b.bitcast(b.op("fmul", b.bitcast(size, "float32"), b.constant(2.0**112, "float32")), "int32")
    endless = b.compare("sge", size, _i(b, 0x7C00 << 13))  # infinity or NaN: the exponent is all ones
    scaled = b.select(endless, b.op("or", scaled, _i(b, 0x7F800000)), scaled)
    sign = b.op("shl", b.op("and", bits, _i(b, 0x8000)), _i(b, 16))
    return b.bitcast(b.op("or", scaled, sign), "float32")


def _narrow_half(b: Builder, v: Val) -> Val:
    """Normal numbers by adding what carries, as for bfloat16; denormal ones by a float addition."""
    bits = b.bitcast(v, "int32")
    size = b.op("and", bits, _i(b, 0x7FFFFFFF))
    is_odd = b.op("and", b.op("lshr", size, _i(b, 13)), _i(b, 1))
    rebased = b.op("add", size, _i(b, ((15 - 127) << 23) + 0xFFF))
    out = b.op("lshr", b.op("add", rebased, is_odd), _i(b, 13))
    # 1/2 has its last bit where the last bit of a float16 denormal is: the addition rounds there.
    magic = b.constant(0.5, "float32")
    tiny = b.bitcast(b.op("fadd", b.bitcast(size, "float32"), magic), "int32")
    tiny = b.op("sub", tiny, _i(b, 0x3F000000))
    out = b.select(b.compare("slt", size, _i(b, (127 - 14) << 23)), tiny, out)
    out = b.select(b.compare("sge", size, _i(b, (127 + 16) << 23)), _i(b, 0x7C00), out)
    payload = b.op("and", b.op("lshr", size, _i(b, 13)), _i(b, 0x3FF))
    out = b.select(b.compare("uno", v, v), b.op("or", payload, _i(b, 0x7E00)), out)
    sign = b.op("and", b.op("lshr", bits, _i(b, 16)), _i(b, 0x8000))
    return _short(b, b.op("or", out, sign), "float16")
