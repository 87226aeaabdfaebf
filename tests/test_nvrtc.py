"""CUDA C becomes machine code without a GPU."""

from __future__ import annotations

import shutil

import pytest
from cuda_kernels import MATMUL, MMA_TF32, PIPELINED_SUM, REGISTER_TILED, SOFTMAX, mma_16

from seer.codegen.cuda.intrinsics import INTRINSICS, device_prelude
from seer.errors import BuildError, TargetError
from seer.runtime import nvrtc
from seer.runtime.nvrtc import compile_cubin, parse_usage

needs_compiler = pytest.mark.skipif(not nvrtc.compiler_name(), reason=f"no CUDA compiler: {nvrtc.INSTALL}")

SOURCES = {
    "matmul": MATMUL,
    "tiled": REGISTER_TILED,
    "softmax": SOFTMAX,
    "mma_tf32": MMA_TF32,
    "mma_f16": mma_16("f16"),
    "mma_bf16": mma_16("bf16"),
    "sums": PIPELINED_SUM,
}


@needs_compiler
@pytest.mark.parametrize("name", SOURCES)
def test_kernels_compile_within_their_registers(name: str) -> None:
    cubin = compile_cubin(SOURCES[name], "sm_80")
    assert cubin.data[:4] == b"\x7fELF"
    usage = cubin.usage(name)
    assert 0 < usage.registers <= 128
    assert usage.spill_bytes == usage.local_bytes == 0


@needs_compiler
def test_usage_is_what_the_kernel_declares() -> None:
    cubin = compile_cubin(MATMUL, "sm_90")
    assert cubin.usage("matmul").shared_bytes == 2 * 16 * 16 * 4
    with pytest.raises(BuildError, match="no kernel 'other'; it has matmul"):
        cubin.usage("other")


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_intrinsic_is_in_some_compiled_kernel(arch: str) -> None:
    """A template or an unused function is not assembled, so each is called here."""
    calls = {
        "seer_shuffle": "x = seer_shuffle(x, 3);",
        "seer_shuffle_xor": "x = seer_shuffle_xor(x, 3);",
        "seer_shuffle_up": "x = seer_shuffle_up(x, 3);",
        "seer_shuffle_down": "x = seer_shuffle_down(x, 3);",
        "seer_load4": "x += seer_load4(out + 4).x;",
        "seer_store4": "seer_store4(out + 8, make_float4(x, x, x, x));",
        "seer_make4": "x += seer_make4(x, x, x, x).y;",
        "seer_load2": "x += seer_load2(out + 4).y;",
        **{f"seer_load{n}_16": f"h += seer_load{n}_16(u + 8).y;" for n in (2, 4)},
        "seer_store2_16": "seer_store2_16(u, seer_make2_16(h, h));",
        "seer_store4_16": "seer_store4_16(u + 4, seer_make4_16(h, h, h, h));",
        **{f"seer_make{n}_16": f"h += seer_make{n}_16({', '.join('h' * n)}).x;" for n in (2, 4)},
        "seer_dynamic_shared": "x += seer_dynamic_shared<float[64]>(256)[3];",
        "seer_fma": "x = seer_fma(x, x, 1.0f); x += (float)seer_fma((double)x, 1.0, 2.0);",
        "seer_half_to_float": "x = seer_half_to_float(h);",
        "seer_float_to_half": "h = seer_float_to_half(x);",
        "seer_bf16_to_float": "x = seer_bf16_to_float(h);",
        "seer_float_to_bf16": "h = seer_float_to_bf16(x);",
        "seer_float_to_tf32": "a[0] = seer_float_to_tf32(x);",
        "seer_half2": "a[1] = seer_half2(x, x);",
        "seer_bf162": "a[2] = seer_bf162(x, x);",
        "seer_mma_m16n8k8_tf32": "seer_mma_m16n8k8_tf32(d, a, b);",
        "seer_mma_m16n8k16_f16": "seer_mma_m16n8k16_f16(d, a, b);",
        "seer_mma_m16n8k16_bf16": "seer_mma_m16n8k16_bf16(d, a, b);",
        "seer_ldmatrix_x2": "seer_ldmatrix_x2(b, s);",
        "seer_ldmatrix_x4": "seer_ldmatrix_x4(a, s);",
        "seer_cp_async_4": "seer_cp_async_4(s, out);",
        "seer_cp_async_8": "seer_cp_async_8(s, out);",
        "seer_cp_async_16": "seer_cp_async_16(s, out);",
        "seer_cp_async_4_or_zero": "seer_cp_async_4_or_zero(s, out, x > 0);",
        "seer_cp_async_8_or_zero": "seer_cp_async_8_or_zero(s, out, x > 0);",
        "seer_cp_async_16_or_zero": "seer_cp_async_16_or_zero(s, out, x > 0);",
        "seer_cp_async_commit": "seer_cp_async_commit();",
        "seer_cp_async_wait": "seer_cp_async_wait<0>();",
    }
    assert set(calls) == set(INTRINSICS)
    body = "\n  ".join(calls.values())
    source = f"""{device_prelude()}
extern "C" __global__ void all(float* out) {{
  __shared__ __align__(16) float s[64];
  float x = out[0] + INFINITY + NAN, d[4] = {{x, x, x, x}};
  unsigned a[4] = {{0, 0, 0, 0}}, b[2] = {{0, 0}};
  unsigned short h = 0, *u = reinterpret_cast<unsigned short*>(out + 64);
  {body}
  out[0] = x + d[0] + d[1] + d[2] + d[3] + h + a[0] + b[0] + s[3];
}}"""
    assert compile_cubin(source, arch).usage("all").registers > 0


@needs_compiler
def test_16_bit_floats_need_no_new_gpu() -> None:
    names = ["seer_half_to_float", "seer_float_to_half", "seer_bf16_to_float", "seer_float_to_bf16"]
    source = f"""{device_prelude(names)}
extern "C" __global__ void k(unsigned short* a, unsigned short* b) {{
  a[threadIdx.x] = seer_float_to_half(seer_bf16_to_float(b[threadIdx.x]));
  b[threadIdx.x] = seer_float_to_bf16(seer_half_to_float(a[threadIdx.x]));
}}"""
    assert compile_cubin(source, "sm_75").usage("k").registers > 0


@needs_compiler
def test_errors_quote_the_line() -> None:
    with pytest.raises(BuildError) as e:
        compile_cubin('extern "C" __global__ void k(float* a) {\n  a[0] = nonsense;\n}', "sm_80")
    assert "sm_80" in str(e.value)
    assert "line 2: a[0] = nonsense;" in str(e.value)


def test_an_architecture_has_a_name() -> None:
    with pytest.raises(TargetError, match="written like sm_90, found 'ampere'"):
        compile_cubin(MATMUL, "ampere")


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "nvrtc", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(TargetError, match="pip install nvidia-cuda-nvrtc"):
        compile_cubin(MATMUL, "sm_80")
    assert nvrtc.compiler_name() == ""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.slow
def test_nvcc_serves_where_nvrtc_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "nvrtc", lambda: None)
    assert nvrtc.compiler_name() == "nvcc"
    cubin = compile_cubin(SOFTMAX, "sm_90")
    assert cubin.usage("softmax").shared_bytes == 16
    with pytest.raises(BuildError, match="line 1: int x = y;"):
        compile_cubin("int x = y;", "sm_90")


def test_usage_of_several_kernels_is_read_from_the_log() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90'
ptxas info    : Function properties for first
    40 bytes stack frame, 36 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 40 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90'
ptxas info    : Function properties for second
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, 380 bytes cmem[0]"""
    usage = parse_usage(log)
    assert usage["first"] == nvrtc.KernelUsage(32, 1024, 40, 48)
    assert usage["second"] == nvrtc.KernelUsage(8, 0, 0, 0)
