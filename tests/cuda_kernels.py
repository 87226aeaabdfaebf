"""Hand-written CUDA kernels that the tests run, whole or broken on purpose."""

from __future__ import annotations

from seer.codegen.cuda.intrinsics import device_prelude

MATMUL = """extern "C" __global__ void __launch_bounds__(256) matmul(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
  __shared__ float as[16][16];
  __shared__ float bs[16][16];
  const int x = threadIdx.x, y = threadIdx.y;
  const int row = blockIdx.y * 16 + y, column = blockIdx.x * 16 + x;
  float sum = 0.0f;
  for (int k0 = 0; k0 < k; k0 += 16) {
    as[y][x] = row < m && k0 + x < k ? a[row * k + k0 + x] : 0.0f;  // load a
    bs[y][x] = k0 + y < k && column < n ? b[(k0 + y) * n + column] : 0.0f;  // load b
    __syncthreads();  // tiles are there
    for (int i = 0; i < 16; ++i) sum = fmaf(as[y][i], bs[i][x], sum);
    __syncthreads();  // tiles are read
  }
  if (row < m && column < n) c[row * n + column] = sum;  // store
}
"""

# A block of 128 threads makes a tile of 32 x 64 of which each thread has 4 x 4; extents that 4 divides.
REGISTER_TILED = (
    device_prelude(["seer_load4", "seer_store4"])
    + """
extern "C" __global__ void __launch_bounds__(128) tiled(
    const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
  __shared__ __align__(16) float as[8][32 + 4];
  __shared__ __align__(16) float bs[8][64];
  float acc[4][4] = {};
  const int t = threadIdx.x, row0 = blockIdx.y * 32, column0 = blockIdx.x * 64;
  for (int k0 = 0; k0 < k; k0 += 8) {
    for (int i = t; i < 8 * 32; i += 128) {
      const int kk = i % 8, r = i / 8;
      as[kk][r] = row0 + r < m && k0 + kk < k ? a[(row0 + r) * k + k0 + kk] : 0.0f;
    }
    const int kb = t / 16, cb = t % 16 * 4;
    const bool is_in = k0 + kb < k && column0 + cb < n;
    seer_store4(&bs[kb][cb], is_in ? seer_load4(b + (k0 + kb) * n + column0 + cb) : make_float4(0, 0, 0, 0));
    __syncthreads();
    #pragma unroll
    for (int kk = 0; kk < 8; ++kk) {
      const float4 x = seer_load4(&as[kk][t / 16 * 4]), y = seer_load4(&bs[kk][t % 16 * 4]);
      const float xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
      #pragma unroll
      for (int i = 0; i < 4; ++i)
        #pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(xs[i], ys[j], acc[i][j]);
    }
    __syncthreads();
  }
  const int row = row0 + t / 16 * 4, column = column0 + t % 16 * 4;
  if (column < n)
    for (int i = 0; i < 4; ++i)
      if (row + i < m) {
        const float4 out = {acc[i][0], acc[i][1], acc[i][2], acc[i][3]};
        seer_store4(c + (row + i) * n + column, out);
      }
}
"""
)

# A block a row; warps meet through shared memory.
SOFTMAX = (
    device_prelude([])
    + """
extern "C" __global__ void __launch_bounds__(128) softmax(
    const float* __restrict__ x, float* __restrict__ y, int n) {
  __shared__ float part[4];
  const int t = threadIdx.x;
  const float* row = x + blockIdx.x * n;
  float top = -INFINITY;
  for (int i = t; i < n; i += 128) top = fmaxf(top, row[i]);
  for (int d = 16; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, d));
  if (t % 32 == 0) part[t / 32] = top;
  __syncthreads();  // maxima
  top = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
  __syncthreads();  // maxima are read
  float sum = 0.0f;
  for (int i = t; i < n; i += 128) sum += __expf(row[i] - top);
  for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffff, sum, d);
  if (t % 32 == 0) part[t / 32] = sum;
  __syncthreads();  // sums
  sum = part[0] + part[1] + part[2] + part[3];
  for (int i = t; i < n; i += 128) y[blockIdx.x * n + i] = __expf(row[i] - top) / sum;
}
"""
)

_MMA_HEAD = device_prelude()

# One warp makes 16 x 8 of c from a (16 x k) and b (k x 8), both row-major; 8 divides k.
MMA_TF32 = (
    _MMA_HEAD
    + """
extern "C" __global__ void __launch_bounds__(32) mma_tf32(const float* a, const float* b, float* c, int k) {
  const int g = threadIdx.x / 4, t = threadIdx.x % 4;
  float d[4] = {0, 0, 0, 0};
  for (int k0 = 0; k0 < k; k0 += 8) {
    const unsigned fa[4] = {
        seer_float_to_tf32(a[g * k + k0 + t]), seer_float_to_tf32(a[(g + 8) * k + k0 + t]),
        seer_float_to_tf32(a[g * k + k0 + t + 4]), seer_float_to_tf32(a[(g + 8) * k + k0 + t + 4])};
    const unsigned fb[2] = {
        seer_float_to_tf32(b[(k0 + t) * 8 + g]), seer_float_to_tf32(b[(k0 + t + 4) * 8 + g])};
    seer_mma_m16n8k8_tf32(d, fa, fb);
  }
  c[g * 8 + 2 * t] = d[0];
  c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2];
  c[(g + 8) * 8 + 2 * t + 1] = d[3];
}
"""
)


def mma_16(kind: str) -> str:
    """The same for "f16" or "bf16": 16 divides k; a is copied through shared memory, 16 columns at a time."""
    pack = {"f16": "seer_half2", "bf16": "seer_bf162"}[kind]
    to_bits = {"f16": "seer_float_to_half", "bf16": "seer_float_to_bf16"}[kind]
    return (
        _MMA_HEAD
        + f"""
extern "C" __global__ void __launch_bounds__(32) mma_{kind}(
    const float* a, const float* b, float* c, int k) {{
  __shared__ __align__(16) unsigned short as[16][24];
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4;
  float d[4] = {{0, 0, 0, 0}};
  for (int k0 = 0; k0 < k; k0 += 16) {{
    for (int i = lane; i < 16 * 16; i += 32) as[i / 16][i % 16] = {to_bits}(a[i / 16 * k + k0 + i % 16]);
    __syncwarp();
    unsigned fa[4];
    seer_ldmatrix_x4(fa, &as[lane % 16][lane / 16 * 8]);
    const unsigned fb[2] = {{
        {pack}(b[(k0 + 2 * t) * 8 + g], b[(k0 + 2 * t + 1) * 8 + g]),
        {pack}(b[(k0 + 2 * t + 8) * 8 + g], b[(k0 + 2 * t + 9) * 8 + g])}};
    seer_mma_m16n8k16_{kind}(d, fa, fb);
    __syncwarp();
  }}
  c[g * 8 + 2 * t] = d[0];
  c[g * 8 + 2 * t + 1] = d[1];
  c[(g + 8) * 8 + 2 * t] = d[2];
  c[(g + 8) * 8 + 2 * t + 1] = d[3];
}}
"""
    )


# Sums of 256 neighbours: the next tile is on its way while one is added up.
PIPELINED_SUM = (
    device_prelude(["seer_cp_async_16_or_zero", "seer_cp_async_commit", "seer_cp_async_wait"])
    + """
extern "C" __global__ void __launch_bounds__(64) sums(const float* x, float* y, int tiles, int n) {
  __shared__ __align__(16) float tile[2][256];
  const int t = threadIdx.x;
  seer_cp_async_16_or_zero(&tile[0][4 * t], x + 4 * t, 4 * t < n);
  seer_cp_async_commit();
  float sum = 0.0f;
  for (int i = 0; i < tiles; ++i) {
    const int next = (i + 1) * 256 + 4 * t;
    if (i + 1 < tiles) seer_cp_async_16_or_zero(&tile[(i + 1) % 2][4 * t], x + next, next < n);
    seer_cp_async_commit();
    seer_cp_async_wait<1>();  // the tile is there
    __syncthreads();
    for (int k = 0; k < 4; ++k) sum += tile[i % 2][t + 64 * k];
    __syncthreads();  // the tile is read
  }
  atomicAdd(y, sum);
}
"""
)
