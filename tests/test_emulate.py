"""CUDA kernels run on the CPU give what NumPy gives."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_kernels import MATMUL, MMA_TF32, PIPELINED_SUM, REGISTER_TILED, SOFTMAX, mma_16

from seer.errors import BuildError, EmulationError, TargetError, UserError
from seer.runtime.emulate import compiler, emulate
from seer.runtime.emulate.source import translate

try:
    compiler.compiler()
except TargetError as e:
    pytest.skip(str(e), allow_module_level=True)

MODES = [(True, "forward"), (True, "reverse"), (True, "random"), (False, "forward"), (False, "random")]
modes = pytest.mark.parametrize(("checked", "order"), MODES)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@modes
@pytest.mark.parametrize("shape", [(37, 29, 50), (16, 16, 16), (1, 1, 1), (17, 33, 0)])
def test_matmul(checked: bool, order: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = floats(m, k), floats(k, n, seed=1), np.full((m, n), np.nan, np.float32)
    grid = (ceil_div(n, 16), ceil_div(m, 16))
    arrays = [a, b, c, m, n, k]
    emulate(MATMUL, "matmul", grid, (16, 16), arrays, checked=checked, order=order, uninitialized=["c"])
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


@modes
@pytest.mark.parametrize("shape", [(33, 68, 21), (64, 64, 8), (5, 4, 3)])
def test_register_tiles_and_float4(checked: bool, order: str, shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = floats(m, k), floats(k, n, seed=1), np.zeros((m, n), np.float32)
    grid = (ceil_div(n, 64), ceil_div(m, 32))
    emulate(REGISTER_TILED, "tiled", grid, (128,), [a, b, c, m, n, k], checked=checked, order=order)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


@modes
@pytest.mark.parametrize("n", [1, 31, 128, 197])
def test_softmax_with_shuffles(checked: bool, order: str, n: int) -> None:
    x = floats(3, n)
    y = np.zeros_like(x)
    emulate(SOFTMAX, "softmax", (3,), (128,), [x, y, n], checked=checked, order=order)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True), rtol=1e-5)


@modes
def test_tensor_cores_tf32(checked: bool, order: str) -> None:
    a, b, c = floats(16, 24), floats(24, 8, seed=1), np.zeros((16, 8), np.float32)
    emulate(MMA_TF32, "mma_tf32", (1,), (32,), [a, b, c, 24], checked=checked, order=order)

    def tf32(x: np.ndarray) -> np.ndarray:  # 10 bits of fraction
        fraction, exponent = np.frexp(x)
        return np.ldexp(np.round(fraction * 2048) / 2048, exponent)

    np.testing.assert_allclose(c, tf32(a) @ tf32(b), rtol=1e-4, atol=1e-5)


@modes
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_tensor_cores_of_16_bits(checked: bool, order: str, kind: str) -> None:
    a, b, c = floats(16, 32), floats(32, 8, seed=1), np.zeros((16, 8), np.float32)
    emulate(mma_16(kind), f"mma_{kind}", (1,), (32,), [a, b, c, 32], checked=checked, order=order)

    def rounded(x: np.ndarray) -> np.ndarray:
        if kind == "f16":
            return x.astype(np.float16).astype(np.float32)
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)

    np.testing.assert_allclose(c, rounded(a) @ rounded(b), rtol=1e-4, atol=1e-5)


@modes
@pytest.mark.parametrize("n", [256, 1000])
def test_asynchronous_copies_and_atomics(checked: bool, order: str, n: int) -> None:
    x, y = floats(n), np.zeros(1, np.float32)
    emulate(
        PIPELINED_SUM, "sums", (1,), (64,), [x, y, ceil_div(n, 256), n], checked=checked, order=order, seed=3
    )
    np.testing.assert_allclose(y[0], x.astype(np.float64).sum(), rtol=1e-4, atol=1e-4)


def test_half_conversions_are_numpys() -> None:
    source = (
        MMA_TF32
        + """
extern "C" __global__ void halves(const unsigned short* h, float* f, unsigned short* back) {
  int i = blockIdx.x * 256 + threadIdx.x;
  f[i] = seer_half_to_float(h[i]);
  back[i] = seer_float_to_half(f[i] * 1.0003f);
}"""
    )
    h = np.arange(65536, dtype=np.uint16)
    f, back = np.zeros(65536, np.float32), np.zeros(65536, np.uint16)
    emulate(source, "halves", (256,), (256,), [h, f, back], checked=False)
    np.testing.assert_array_equal(f, h.view(np.float16).astype(np.float32))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (f * np.float32(1.0003)).astype(np.float16)
    is_nan = np.isnan(expected)
    np.testing.assert_array_equal(back[~is_nan], expected.view(np.uint16)[~is_nan])
    assert np.isnan(back.view(np.float16)[is_nan]).all()


def test_indices_and_dynamic_shared_memory() -> None:
    source = """extern "C" __global__ void where(int* out, long long scale) {
  extern __shared__ int buffer[];
  int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int threads = blockDim.x * blockDim.y * blockDim.z;
  buffer[t] = (int)(t * scale);
  __syncthreads();
  out[b * threads + t] = buffer[threads - 1 - t] + 100 * b;
}"""
    out = np.zeros((24, 30), np.int32)
    emulate(source, "where", (2, 3, 4), (5, 3, 2), [out, 7], shared_bytes=120)
    np.testing.assert_array_equal(out, np.arange(29, -1, -1)[None] * 7 + 100 * np.arange(24)[:, None])


def test_several_shared_arrays_in_one_declaration_and_device_functions() -> None:
    source = """
/* __shared__ float not_this[4]; */
template <int n> __device__ __forceinline__ float twice(float x) { return n * x; }
extern "C" __global__ void pair(const float* x, float* y) {
  __shared__ float a[32], b[32],
      c;  // __shared__ in a comment
  a[threadIdx.x] = x[threadIdx.x];
  b[threadIdx.x] = twice<2>(x[threadIdx.x]);
  if (threadIdx.x == 0) c = 1.0f;
  __syncthreads();
  y[threadIdx.x] = a[31 - threadIdx.x] + b[threadIdx.x] + c;
}"""
    x, y = floats(32), np.zeros(32, np.float32)
    for checked in (True, False):
        emulate(source, "pair", (1,), (32,), [x, y], checked=checked)
        np.testing.assert_allclose(y, x[::-1] + 2 * x + 1, rtol=1e-6)


def test_a_kernel_that_never_waits_needs_no_stacks() -> None:
    assert not translate('extern "C" __global__ void k(float* a) { a[0] = 1; }', False).is_blocking
    assert not translate(REGISTER_TILED.replace("__syncthreads();", ""), False).is_blocking
    for source in (MATMUL, SOFTMAX, MMA_TF32, PIPELINED_SUM):
        assert translate(source, False).is_blocking


def test_wrong_arguments_are_the_callers_fault() -> None:
    a = floats(4, 4)

    def run(name: str = "matmul", arrays: object = None, block: tuple[int, ...] = (16, 16)) -> None:
        emulate(MATMUL, name, (1,), block, arrays or [a, a, a.copy(), 4, 4, 4])  # type: ignore[arg-type]

    with pytest.raises(UserError, match="no kernel 'nothing'; it has matmul"):
        run("nothing")
    with pytest.raises(UserError, match="6 parameters, given 1"):
        run(arrays=[a])
    with pytest.raises(UserError, match="a points to float, found an array of float64"):
        run(arrays=[a.astype(np.float64), a, a, 4, 4, 4])
    with pytest.raises(UserError, match="512 threads a block, __launch_bounds__ says 256"):
        run(block=(32, 16))
    with pytest.raises(UserError, match="2048 threads, not 1 to 1024"):
        run(block=(64, 32))


def test_errors_of_the_compiler_name_the_line() -> None:
    with pytest.raises(BuildError, match=r"kernel\.cu:2.*nonsense"):
        emulate('extern "C" __global__ void k(float* a) {\n  nonsense(a);\n}', "k", (1,), (1,), [floats(1)])


def test_without_a_compiler_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.compiler.cache_clear()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    try:
        with pytest.raises(TargetError, match="none of \\$CXX, g\\+\\+ and clang\\+\\+ was found; install"):
            compiler.compiler()
    finally:
        compiler.compiler.cache_clear()


def test_an_endless_kernel_is_ended() -> None:
    source = 'extern "C" __global__ void k(float* a) {\n  while (a[0] == 0.0f) __syncthreads();\n}'
    with pytest.raises(EmulationError, match="no end within") as e:
        emulate(source, "k", (1,), (2,), [np.zeros(1, np.float32)], limit_s=0.5)
    assert e.value.fault == "timeout"


@modes
def test_parts_of_a_warp_shuffle_apart_and_together(checked: bool, order: str) -> None:
    source = """extern "C" __global__ void k(int* y, int n) {
  int v = threadIdx.x, lane = threadIdx.x % 32;
  if (lane < 16) {
    for (int i = 0; i < n; ++i) v = __shfl_xor_sync(0x0000ffff, v, 1);
  } else {
    v = __shfl_sync(0xffff0000, v, 16);
    __syncwarp(0xffff0000);
  }
  y[threadIdx.x] = __shfl_up_sync(0xffffffff, v, 1);
}"""
    y, t = np.zeros(64, np.int32), np.arange(64)
    emulate(source, "k", (1,), (64,), [y, 3], checked=checked, order=order, seed=2)
    v = np.where(t % 32 < 16, t ^ 1, t // 32 * 32 + 16)
    np.testing.assert_array_equal(y, np.where(t % 32 == 0, v, np.roll(v, 1)))
