"""CudaModules written by hand, with fixed extents, for tests of the runtime."""

from __future__ import annotations

from seer.codegen.artifact import ArgSpec
from seer.codegen.cuda.module import CudaModule, Launch, Scratch


def dense(
    name: str, m: int, n: int, k: int, *, relu: bool = False, plant: tuple[str, str] = ("", "")
) -> CudaModule:
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
    launch = Launch(f"{name}_0", -(-m * n // 64), 64, ("x", "w", "y"))
    return CudaModule(name, "cuda", source.replace(old, new) if old else source, (launch,), args)


def split_dense(name: str, m: int, n: int, k: int) -> CudaModule:
    """The same in three launches: half sums in two scratch buffers, then their sum through a third."""
    half, blocks = k // 2, -(-m * n // 32)
    source = f"""
extern "C" __global__ void {name}_part(const float* x, const float* w, float* low, float* high) {{
  const int part = blockIdx.x / {blocks}, i = blockIdx.x % {blocks} * 32 + threadIdx.x;
  float* to = part ? high : low;
  const int begin = part ? {half} : 0, end = part ? {k} : {half};
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
    return CudaModule(
        name,
        "cuda",
        source,
        (
            Launch(f"{name}_part", 2 * blocks, 32, ("x", "w", "low", "high")),
            Launch(f"{name}_add", blocks, 32, ("low", "high", "both")),
            Launch(f"{name}_out", blocks, 32, ("both", "y")),
        ),
        dense(name, m, n, k).args,
        tuple(Scratch(b, m * n * 4) for b in ("low", "high", "both")),
    )
