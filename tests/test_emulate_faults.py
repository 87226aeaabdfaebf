"""Faults planted in good CUDA kernels are found, with their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from cuda_kernels import MATMUL, PIPELINED_SUM, REGISTER_TILED, SOFTMAX

from seer.errors import EmulationError, TargetError
from seer.runtime.emulate import compiler, emulate

try:
    compiler.compiler()
except TargetError as e:
    pytest.skip(str(e), allow_module_level=True)

M, N, K = 37, 30, 52


def replace(source: str, old: str, new: str) -> str:
    assert old in source
    return source.replace(old, new, 1)


def line_of(source: str, text: str) -> int:
    return next(k for k, line in enumerate(source.splitlines(), 1) if text in line)


def fault(
    source: str,
    name: str,
    arrays: Sequence[Any],
    grid: tuple[int, ...] = (1,),
    block: tuple[int, ...] = (32,),
    **options: Any,
) -> EmulationError:
    with pytest.raises(EmulationError) as e:
        emulate(source, name, grid, block, arrays, **options)
    return e.value


def fault_of_matmul(old: str, new: str, **options: Any) -> EmulationError:
    rng = np.random.default_rng(0)
    a, b = rng.random((M, K), np.float32), rng.random((K, N), np.float32)
    arrays = [a, b, np.zeros((M, N), np.float32), M, N, K]
    return fault(replace(MATMUL, old, new), "matmul", arrays, (2, 3), (16, 16), **options)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("barrier", ["tiles are there", "tiles are read"])
def test_missing_barrier(order: str, barrier: str) -> None:
    e = fault_of_matmul(f"__syncthreads();  // {barrier}", "", order=order)
    assert e.array in ("as", "bs")
    assert e.block is not None and e.thread is not None
    if barrier == "tiles are there":
        assert e.fault in ("race", "unwritten read")  # whether the reader or the writer runs first
    else:
        assert e.fault == "race"
        assert "with no barrier between" in str(e)
        assert re.search(r"\n  line \d+: .*\n  the other access: line \d+: ", str(e))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_divergent_barrier(order: str) -> None:
    source = """extern "C" __global__ void k(float* x) {
  if (threadIdx.x < 20) __syncthreads();
  x[threadIdx.x] = 1.0f;
}"""
    e = fault(source, "k", [np.zeros(32, np.float32)], order=order)
    assert (e.fault, e.line) == ("barrier divergence", 2)
    assert "thread (0, 0, 0) waits at the barrier on line 2, but thread (20, 0, 0) has ended" in str(e)


def test_threads_that_wait_at_two_barriers() -> None:
    source = """extern "C" __global__ void k(float* x) {
  if (threadIdx.x % 2)
    __syncthreads();
  else
    __syncthreads();
}"""
    e = fault(source, "k", [np.zeros(32, np.float32)])
    assert e.fault == "barrier divergence"
    assert "at the barrier on line 3, thread (0, 0, 0) at the one on line 5" in str(e)


def test_a_race_behind_a_divergent_barrier_names_the_barrier() -> None:
    e = fault_of_matmul("__syncthreads();  // tiles are there", "if (row < m) __syncthreads();")
    assert e.fault in ("race", "unwritten read")
    assert f"waits at the barrier on line {line_of(MATMUL, 'tiles are there')}" in str(e)


def test_barrier_after_some_threads_have_ended() -> None:
    e = fault_of_matmul("float sum = 0.0f;", "float sum = 0.0f; if (row >= m) return;")
    assert e.fault == "barrier divergence"
    assert "has ended" in str(e)


def test_global_read_out_of_bounds() -> None:
    e = fault_of_matmul("row < m && k0 + x < k ?", "k0 + x < k ?")
    assert (e.fault, e.array, e.line) == ("out of bounds", "a", line_of(MATMUL, "load a"))
    assert re.search(r"reads element \d+ of global array a, which has 1924 elements", str(e))


def test_global_write_out_of_bounds() -> None:
    e = fault_of_matmul("if (row < m && column < n) c", "if (column < n) c")
    assert (e.fault, e.array, e.line) == ("out of bounds", "c", line_of(MATMUL, "// store"))
    assert re.search(r"writes element \d+ of global array c, which has 1110 elements", str(e))


def test_guard_off_by_one() -> None:
    e = fault_of_matmul("k0 + y < k && column", "k0 + y <= k && column")
    assert (e.fault, e.array, e.line) == ("out of bounds", "b", line_of(MATMUL, "load b"))
    assert e.thread is not None and e.thread[1] == K % 16


def test_guard_off_by_one_in_fast_mode_too() -> None:
    """Without checks the processor finds what lies outside of an array's pages."""
    e = fault_of_matmul("row < m && k0 + x < k ?", "k0 + x < k ?", checked=False)
    assert (e.fault, e.array) == ("out of bounds", "a")


def test_swapped_stride() -> None:
    e = fault_of_matmul("a[row * k + k0 + x]", "a[row * 64 + k0 + x]")
    assert (e.fault, e.array) == ("out of bounds", "a")


def test_swapped_stride_that_stays_inside_is_wrong_or_a_race() -> None:
    e = fault_of_matmul("c[row * n + column]", "c[row * (n - 1) + column]")
    assert (e.fault, e.array) == ("race", "c")


def test_shared_array_too_small() -> None:
    e = fault_of_matmul("as[16][16]", "as[15][16]")
    assert e.fault == "out of bounds"
    assert e.line == line_of(MATMUL, "load a")
    assert "index 15 is outside of an array of type 'float [15][16]'" in str(e)


def test_shared_array_overrun_through_a_pointer() -> None:
    source = replace(MATMUL, "as[y][x] =", "*((float*)as + 16 * y + 17 * x) =")
    rng = np.random.default_rng(0)
    a, b = rng.random((M, K), np.float32), rng.random((K, N), np.float32)
    arrays = [a, b, np.zeros((M, N), np.float32), M, N, K]
    e = fault(source, "matmul", arrays, (2, 3), (16, 16), order="reverse")
    assert (e.fault, e.array) == ("out of bounds", "as")
    assert "of shared array as, which has 256 elements" in str(e)


def test_dynamic_shared_memory_too_small() -> None:
    source = """extern "C" __global__ void k(float* y) {
  extern __shared__ float buffer[];
  buffer[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = buffer[threadIdx.x];
}"""
    y = np.zeros(32, np.float32)
    emulate(source, "k", (1,), (32,), [y], shared_bytes=128)
    e = fault(source, "k", [y], shared_bytes=124)
    assert (e.fault, e.array, e.line, e.thread) == ("out of bounds", "dynamic shared memory", 3, (31, 0, 0))


def test_unwritten_shared_read() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((20, 12), np.float32), rng.random((12, 20), np.float32)
    c = np.zeros((20, 20), np.float32)
    source = replace(MATMUL, "as[y][x] = ", "if (k0 + x < k) as[y][x] = ")
    e = fault(source, "matmul", [a, b, c, 20, 20, 12], (2, 2), (16, 16))
    assert (e.fault, e.array, e.line) == ("unwritten read", "as", line_of(MATMUL, "fmaf"))
    assert re.search(r"reads element \d+ of as \(256 elements\), which nothing has written yet", str(e))


def test_shared_memory_of_another_block_counts_as_unwritten() -> None:
    source = """extern "C" __global__ void k(float* y) {
  __shared__ float s[32];
  if (blockIdx.x == 0) s[threadIdx.x] = 1.0f;
  y[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x];
}"""
    e = fault(source, "k", [np.zeros(64, np.float32)], (2,))
    assert (e.fault, e.array, e.block, e.line) == ("unwritten read", "s", (1, 0, 0), 4)
    assert "which nothing has written yet in this block" in str(e)


def test_output_read_before_it_is_written() -> None:
    source = 'extern "C" __global__ void k(float* y) {\n  y[threadIdx.x] += 1.0f;\n}'
    y = np.zeros(32, np.float32)
    emulate(source, "k", (1,), (32,), [y])
    assert (y == 1).all()
    e = fault(source, "k", [y], uninitialized=["y"])
    assert (e.fault, e.array, e.line) == ("unwritten read", "y", 2)


def test_two_blocks_write_one_element() -> None:
    e = fault_of_matmul("blockIdx.x * 16 + x", "blockIdx.x * 15 + x")
    assert (e.fault, e.array, e.line) == ("race", "c", line_of(MATMUL, "// store"))
    assert "blocks are not ordered" in str(e)
    assert "of block (0, 0, 0)" in str(e)


def test_a_block_reads_what_another_wrote() -> None:
    source = """extern "C" __global__ void k(float* y) {
  if (blockIdx.x == 0) y[threadIdx.x] = 1.0f;
  else y[32 + threadIdx.x] = y[threadIdx.x];
}"""
    for order in ("forward", "reverse"):
        e = fault(source, "k", [np.zeros(64, np.float32)], (2,), order=order)
        assert (e.fault, e.array) == ("race", "y")


@pytest.mark.parametrize("barrier", ["maxima", "maxima are read", "sums"])
def test_softmax_without_a_barrier(barrier: str) -> None:
    x = np.random.default_rng(0).random((2, 100), np.float32)
    source = replace(SOFTMAX, f"__syncthreads();  // {barrier}\n", "\n")
    e = fault(source, "softmax", [x, x.copy(), 100], (2,), (128,))
    assert e.array == "part"
    assert e.fault in ("race", "unwritten read")


def test_shuffle_that_part_of_a_warp_reaches() -> None:
    loop = "for (int d = 16; d > 0; d /= 2) top"
    source = replace(SOFTMAX, loop, f"if (t % 2) {loop}")
    x = np.random.default_rng(0).random((1, 100), np.float32)
    e = fault(source, "softmax", [x, x.copy(), 100], (1,), (128,))
    assert e.fault == "warp divergence"
    assert "__shfl_xor_sync" in str(e)


def test_shuffle_that_reads_a_lane_outside_of_the_block() -> None:
    source = """extern "C" __global__ void k(float* y) {
  y[threadIdx.x] = __shfl_down_sync(0xffffffff, (float)threadIdx.x, 8);
}"""
    e = fault(source, "k", [np.zeros(24, np.float32)], (1,), (24,))
    assert (e.fault, e.line) == ("warp divergence", 2)
    assert re.search(r"reads lane \d+, which does not take part", str(e))


def test_warps_need_a_warp_barrier_between_accesses_to_shared_memory() -> None:
    source = """extern "C" __global__ void k(float* y) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  __syncwarp();
  y[threadIdx.x] = s[threadIdx.x ^ 1];
}"""
    y = np.zeros(64, np.float32)
    for order in ("forward", "reverse", "random"):
        emulate(source, "k", (1,), (64,), [y], order=order)
        np.testing.assert_array_equal(y, np.arange(64) ^ 1)
    e = fault(replace(source, "__syncwarp();", ""), "k", [y], (1,), (64,))
    assert (e.fault, e.array) in (("race", "s"), ("unwritten read", "s"))
    other_warp = replace(source, "threadIdx.x ^ 1", "threadIdx.x ^ 32")
    e = fault(other_warp, "k", [y], (1,), (64,))
    assert (e.fault, e.array) in (("race", "s"), ("unwritten read", "s"))


@pytest.mark.parametrize(
    ("old", "new", "faults"),
    [
        ("seer_cp_async_wait<1>();", "seer_cp_async_wait<2>();", ("unwritten read",)),
        ("seer_cp_async_wait<1>();", "", ("unwritten read", "race")),
        ("__syncthreads();  // the tile is read", "", ("unwritten read", "race")),
        ("atomicAdd(y, sum);", "y[0] += sum;", ("race",)),
    ],
)
def test_asynchronous_copies_and_atomics(old: str, new: str, faults: tuple[str, ...]) -> None:
    x, y = np.random.default_rng(0).random(1000, np.float32), np.zeros(1, np.float32)
    e = fault(replace(PIPELINED_SUM, old, new), "sums", [x, y, 4, 1000], (1,), (64,))
    assert e.fault in faults


def test_an_unwaited_copy_says_so() -> None:
    x, y = np.random.default_rng(0).random(1000, np.float32), np.zeros(1, np.float32)
    source = replace(PIPELINED_SUM, "t + 64 * k]", "4 * t + k]")  # each thread reads its own copy
    emulate(source, "sums", (1,), (64,), [x, y, 4, 1000])
    e = fault(replace(source, "seer_cp_async_wait<1>();", ""), "sums", [x, y, 4, 1000], (1,), (64,))
    assert (e.fault, e.array) == ("unwritten read", "tile")
    assert "has not been waited for" in str(e)


def test_misaligned_vector_access() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((8, 8), np.float32), rng.random((8, 9), np.float32)
    e = fault(REGISTER_TILED, "tiled", [a, b, np.zeros((8, 9), np.float32), 8, 9, 8], (1, 1), (128,))
    assert e.fault in ("misaligned access", "out of bounds")


def test_write_through_a_pointer_to_constant_memory() -> None:
    source = 'extern "C" __global__ void k(const float* x) {\n  ((float*)x)[threadIdx.x] = 1.0f;\n}'
    e = fault(source, "k", [np.zeros(32, np.float32)])
    assert (e.fault, e.array, e.line) == ("constant written", "x", 2)


def test_index_arithmetic_that_overflows() -> None:
    source = 'extern "C" __global__ void k(float* x, int n) {\n  if (n * n > 0) x[0] = 1.0f;\n}'
    e = fault(source, "k", [np.zeros(1, np.float32), 70000], block=(1,))
    assert (e.fault, e.line) == ("overflow", 2)


def test_local_array_index() -> None:
    source = """extern "C" __global__ void k(float* x, int n) {
  float r[4] = {1, 2, 3, 4};
  x[threadIdx.x] = r[threadIdx.x % n];
}"""
    x = np.zeros(32, np.float32)
    emulate(source, "k", (1,), (32,), [x, 4])
    e = fault(source, "k", [x, 5])
    assert (e.fault, e.line, e.thread) == ("out of bounds", 3, (4, 0, 0))


@pytest.mark.parametrize("checked", [True, False])
def test_a_crash_is_an_error(checked: bool) -> None:
    source = 'extern "C" __global__ void k(float* x) {\n  x[(long long)threadIdx.x << 40] = 1.0f;\n}'
    e = fault(source, "k", [np.zeros(1, np.float32)], checked=checked)
    assert e.fault in ("out of bounds", "crash")
    assert (e.line, e.thread) == (2, (1, 0, 0))


def test_too_much_static_shared_memory() -> None:
    source = """extern "C" __global__ void k(float* x) {
  __shared__ float s[64][200];
  s[0][0] = x[0];
}"""
    e = fault(source, "k", [np.zeros(1, np.float32)], block=(1,))
    assert e.fault == "too much shared memory"
    assert "51200 bytes" in str(e)


def test_a_good_kernel_is_untouched_by_an_earlier_fault() -> None:
    y = np.zeros(32, np.float32)
    fault('extern "C" __global__ void k(float* y) { y[threadIdx.x] = 1; y[threadIdx.x - 1] = 2; }', "k", [y])
    assert (y == 0).all()


def test_an_atomic_update_reads_what_it_updates() -> None:
    source = """extern "C" __global__ void k(int* y) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  atomicAdd(&count, 2);
  __syncthreads();
  y[threadIdx.x] = count;
}"""
    y = np.zeros(32, np.int32)
    for order in ("forward", "reverse", "random"):
        emulate(source, "k", (1,), (32,), [y], order=order)
        assert (y == 64).all()
    e = fault(replace(source, "count = 0", ";"), "k", [y])
    assert (e.fault, e.array, e.line) == ("unwritten read", "count", 5)
    e = fault(replace(source, "atomicAdd(&count, 2);", "atomicAdd(&count, 2); count = 5;"), "k", [y])
    assert (e.fault, e.array) == ("race", "count")
    e = fault(replace(source, "atomicAdd(&count, 2);\n  __syncthreads();", "atomicAdd(&count, 2);"), "k", [y])
    assert (e.fault, e.array) == ("race", "count")


def test_unset_local_variables_do_not_look_like_zero() -> None:
    source = """extern "C" __global__ void k(float* y, int n) {
  float r[4];
  for (int i = 0; i < n; ++i) r[i] = 1.0f;
  y[threadIdx.x] = r[threadIdx.x % 4];
}"""
    y = np.zeros(32, np.float32)
    emulate(source, "k", (1,), (32,), [y, 3])
    assert (y[3::4] != 0).all() or "clang" in compiler.compiler()


def test_an_array_is_as_large_as_each_instance_of_a_template_makes_it() -> None:
    source = """template <int n> __device__ float turned(float x, int t) {
  __shared__ float s[n];
  if (t < n) s[t] = x;
  __syncthreads();
  float out = t < n ? s[n - 1 - t] : 0.0f;
  __syncthreads();
  return out;
}
extern "C" __global__ void k(float* y) {
  y[threadIdx.x] = turned<32>(1.0f, threadIdx.x) + turned<16>(2.0f, threadIdx.x);
}"""
    y = np.zeros(32, np.float32)
    for checked in (True, False):
        emulate(source, "k", (1,), (32,), [y], checked=checked)
        np.testing.assert_array_equal(y, np.where(np.arange(32) < 16, 3, 1))
