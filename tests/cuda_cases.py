"""CudaKernels written by hand, with fixed extents, for tests of the runtime."""

from __future__ import annotations

from seer.codegen.artifact import ArgSpec
from seer.codegen.cuda.artifact import BufferSpec, CudaKernel, Launch


def dense(
    name: str, m: int, n: int, k: int, *, relu: bool = False, plant: tuple[str, str] = ("", "")
) -> CudaKernel:
    """y[m, n] = x[m, k] * w[k, n], a thread an element; `plant` replaces a part of the source."""
    result = "sum > 0.0f ? sum : 0.0f" if relu else "sum"
    source = f"""extern "C" __global__ void __launch_bounds__(64) {name}_0(
    const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y) {{
  const int i = blockIdx.x * 64 + threadIdx.x;
  if (i < {m * n}) {{
    float sum = 0.0f;
    for (int k = 0; k < {k}; ++k) sum = fmaf(x[i / {n} * {k} + k], w[k * {n} + i % {n}], sum);
    y[i] = {result};
  }}
}}
"""
    old, new = plant
    assert old in source
    args = (
        ArgSpec("x", (m, k), "float32"),
        ArgSpec("w", (k, n), "float32", constant=True),
        ArgSpec("y", (m, n), "float32"),
    )
    launch = Launch(f"{name}_0", (-(-m * n // 64), 1, 1), (64, 1, 1), ("x", "w", "y"))
    return CudaKernel(name, args, source.replace(old, new) if old else source, (launch,))


def split_dense(name: str, m: int, n: int, k: int) -> CudaKernel:
    """The same in three launches: half sums in two scratch buffers, then their sum through a third."""
    half = k // 2
    source = f"""
extern "C" __global__ void {name}_part(const float* x, const float* w, float* low, float* high) {{
  const int i = blockIdx.x * 32 + threadIdx.x;
  float* to = blockIdx.y ? high : low;
  const int begin = blockIdx.y ? {half} : 0, end = blockIdx.y ? {k} : {half};
  if (i < {m * n}) {{
    float sum = 0.0f;
    for (int k = begin; k < end; ++k) sum = fmaf(x[i / {n} * {k} + k], w[k * {n} + i % {n}], sum);
    to[i] = sum;
  }}
}}
extern "C" __global__ void {name}_add(const float* low, const float* high, float* both) {{
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (i < {m * n}) both[i] = low[i] + high[i];
}}
extern "C" __global__ void {name}_out(const float* both, float* y) {{
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (i < {m * n}) y[i] = both[i];
}}
"""
    blocks = -(-m * n // 32)
    return CudaKernel(
        name,
        dense(name, m, n, k).args,
        source,
        (
            Launch(f"{name}_part", (blocks, 2, 1), (32, 1, 1), ("x", "w", "low", "high")),
            Launch(f"{name}_add", (blocks, 1, 1), (32, 1, 1), ("low", "high", "both")),
            Launch(f"{name}_out", (blocks, 1, 1), (32, 1, 1), ("both", "y")),
        ),
        tuple(BufferSpec(b, m * n * 4) for b in ("low", "high", "both")),
    )
