"""What a GPU itself can do: multiply-adds, tensor cores, memory; by kernels that do nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seer.codegen.cuda.intrinsics import device_prelude
from seer.codegen.cuda.module import Launch
from seer.runtime.cuda.device import Device
from seer.runtime.gpu import Gpu

THREADS = 256
CHAINS = 16  # independent sums of a thread: more than the latency of a multiply-add
FRAGMENTS = 8  # independent products of a warp
ROUNDS = 7

_FMA = """
extern "C" __global__ void __launch_bounds__({threads}) peak_fma(const float* from, float* to) {{
  const float a = from[0];
  float s[{chains}];
  #pragma unroll
  for (int k = 0; k < {chains}; ++k) s[k] = from[1 + k];
  for (int i = 0; i < {steps}; ++i) {{
    #pragma unroll
    for (int k = 0; k < {chains}; ++k) s[k] = seer_fma(s[k], a, a);
  }}
  float sum = 0.0f;
  #pragma unroll
  for (int k = 0; k < {chains}; ++k) sum += s[k];
  to[blockIdx.x * {threads} + threadIdx.x] = sum;
}}
"""

_MMA = """
extern "C" __global__ void __launch_bounds__({threads}) peak_mma(const float* from, float* to) {{
  unsigned a[4], b[2];
  float d[{fragments}][4];
  #pragma unroll
  for (int k = 0; k < 4; ++k) a[k] = {convert};
  b[0] = a[0];
  b[1] = a[1];
  #pragma unroll
  for (int k = 0; k < {fragments}; ++k)
    #pragma unroll
    for (int j = 0; j < 4; ++j) d[k][j] = from[j];
  for (int i = 0; i < {steps}; ++i) {{
    #pragma unroll
    for (int k = 0; k < {fragments}; ++k) {function}(d[k], a, b);
  }}
  float sum = 0.0f;
  #pragma unroll
  for (int k = 0; k < {fragments}; ++k) sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];
  to[blockIdx.x * {threads} + threadIdx.x] = sum;
}}
"""

_READ = """
extern "C" __global__ void __launch_bounds__({threads}) peak_read(const float* from, float* to) {{
  float sum = 0.0f;
  for (long long i = blockIdx.x * {threads} + threadIdx.x; i < {vectors}LL; i += {blocks}LL * {threads}) {{
    const seer_float4 v = seer_load4(from + 4 * i);
    sum += v.x + v.y + v.z + v.w;
  }}
  to[blockIdx.x * {threads} + threadIdx.x] = sum;
}}
"""

_COPY = """
extern "C" __global__ void __launch_bounds__({threads}) peak_copy(const float* from, float* to) {{
  for (long long i = blockIdx.x * {threads} + threadIdx.x; i < {vectors}LL; i += {blocks}LL * {threads})
    seer_store4(to + 4 * i, seer_load4(from + 4 * i));
}}
"""

# Name, function, products in one multiplication of a warp, from which capability on, a fragment.
_MATRICES = (
    ("tf32", "seer_mma_m16n8k8_tf32", 16 * 8 * 8, 80, "seer_float_to_tf32"),
    ("float16", "seer_mma_m16n8k16_f16", 16 * 8 * 16, 80, "seer_half2"),
)


@dataclass(frozen=True)
class Limits:
    """A device's limits as measured.

    Attributes:
        flop_s: float32 operations each second; a multiply-add counts two.
        matrix_flop_s: the same of tensor cores, by type; empty without.
        read_bytes_s: bytes read from memory each second.
        copy_bytes_s: bytes read and written each second by a copy.
    """

    flop_s: float
    matrix_flop_s: dict[str, float]
    read_bytes_s: float
    copy_bytes_s: float

    @property
    def bytes_s(self) -> float:
        """The better of both."""
        return max(self.read_bytes_s, self.copy_bytes_s)


def measure(device: Device, gpu: Gpu, small: bool) -> Limits:
    """Measure a device.

    Args:
        device: an open device.
        gpu: what is known of it; an emulated device takes its speeds from here.
        small: a little work only, for a device that is emulated.
    """
    blocks = 2 if small else 8 * gpu.num_sms
    run = _Runner(device, blocks, small)
    steps = 4 if small else 4096
    fma = _FMA.format(threads=THREADS, chains=CHAINS, steps=steps)
    flop = 2.0 * CHAINS * steps * blocks * THREADS
    flop_s = flop / run.seconds("peak_fma", fma, ["seer_fma"], flop / gpu.flops)
    matrices = {}
    for name, function, products, capability, convert in _MATRICES:
        if gpu.capability < capability:
            continue
        fragment = f"{convert}(from[k], from[k])" if convert == "seer_half2" else f"{convert}(from[k])"
        source = _MMA.format(
            threads=THREADS, fragments=FRAGMENTS, steps=steps, function=function, convert=fragment
        )
        flop = 2.0 * products * FRAGMENTS * steps * blocks * THREADS / gpu.warp_size
        expected_s = flop / max(gpu.tf32_flops, 1e12)
        matrices[name] = flop / run.seconds("peak_mma", source, [function, convert], expected_s)
    size_bytes = 1 << 16 if small else max(1 << 30, 8 * gpu.l2_bytes)
    options = {"threads": THREADS, "blocks": blocks, "vectors": size_bytes // 16}
    helpers = ["seer_load4", "seer_store4"]
    expected_s = size_bytes / gpu.bandwidth
    read_s = run.seconds("peak_read", _READ.format(**options), helpers, expected_s, size_bytes)
    copy_s = run.seconds("peak_copy", _COPY.format(**options), helpers, 2 * expected_s, size_bytes)
    return Limits(flop_s, matrices, size_bytes / read_s, 2 * size_bytes / copy_s)


class _Runner:
    """Runs a kernel of two arrays and takes its best time."""

    def __init__(self, device: Device, blocks: int, small: bool) -> None:
        self._device, self._blocks, self._small = device, blocks, small

    def seconds(
        self, name: str, source: str, helpers: list[str], expected_s: float, size_bytes: int = 0
    ) -> float:
        size_bytes = max(size_bytes, 4 * THREADS * self._blocks)
        here, there = self._device.alloc(size_bytes), self._device.alloc(size_bytes)
        self._device.fill(here, 0)
        self._device.write(here.part(0, 256), np.linspace(0.1, 0.4, 64, dtype=np.float32))
        module = self._device.load(device_prelude(helpers) + source)
        launch = Launch(name, self._blocks, THREADS, ("from", "to"), expected_s=expected_s)

        def run() -> None:
            self._device.launch(module, launch, [here, there])

        run()
        self._device.synchronize()
        return min(self._device.time(run, ROUNDS))
