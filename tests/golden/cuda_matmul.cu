extern "C" __global__ void __launch_bounds__(8) mm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c) {
  __shared__ __align__(16) float a_block_shared1[32];
  __shared__ __align__(16) float b_block_shared2[32];
  float c_register3[2][4];
  const int block_4 = blockIdx.x;
  const int thread_5 = threadIdx.x;
  const int i00_6 = block_4 / 4;
  const int i10_7 = block_4 % 4;
  const int i02_8 = thread_5 / 2;
  const int i12_9 = thread_5 % 2;
  #pragma unroll
  for (int i04_10 = 0; i04_10 < 2; ++i04_10) {
    #pragma unroll
    for (int i14_11 = 0; i14_11 < 4; ++i14_11) {
      c_register3[i04_10][i14_11] = 0.0f;
    }
  }
  #pragma unroll 1
  for (int k0_12 = 0; k0_12 < 2; ++k0_12) {
    __syncthreads();
    #pragma unroll
    for (int c_13 = 0; c_13 < 4; ++c_13) {
      const int n_14 = c_13 * 8 + thread_5;
      const int a0_15 = n_14 / 4;
      const int a1_16 = n_14 % 4;
      a_block_shared1[a0_15 * 4 + a1_16] = i00_6 * 8 + a0_15 < 13 && k0_12 * 4 + a1_16 < 6 ? a[i00_6 * 48 + a0_15 * 6 + k0_12 * 4 + a1_16] : 0.0f;
    }
    const int n_19 = thread_5 * 4;
    const int b0_20 = n_19 / 8;
    const int b1_21 = n_19 % 8;
    seer_store4(&b_block_shared2[b0_20 * 8 + b1_21], k0_12 * 4 + b0_20 < 6 ? seer_load4(&b[k0_12 * 128 + b0_20 * 32 + i10_7 * 8 + b1_21]) : seer_make4(0.0f, 0.0f, 0.0f, 0.0f));
    __syncthreads();
    #pragma unroll
    for (int k1_23 = 0; k1_23 < 2; ++k1_23) {
      #pragma unroll
      for (int k2_24 = 0; k2_24 < 2; ++k2_24) {
        #pragma unroll
        for (int i04_25 = 0; i04_25 < 2; ++i04_25) {
          #pragma unroll
          for (int i14_26 = 0; i14_26 < 4; ++i14_26) {
            c_register3[i04_25][i14_26] = seer_fma(a_block_shared1[i02_8 * 8 + i04_25 * 4 + k1_23 * 2 + k2_24], b_block_shared2[k1_23 * 16 + k2_24 * 8 + i12_9 * 4 + i14_26], c_register3[i04_25][i14_26]);
          }
        }
      }
    }
  }
  #pragma unroll
  for (int i04_28 = 0; i04_28 < 2; ++i04_28) {
    if (i00_6 * 8 + i02_8 * 2 + i04_28 < 13) {
      seer_store4(&c[i00_6 * 256 + i02_8 * 64 + i04_28 * 32 + i10_7 * 8 + i12_9 * 4], seer_make4(c_register3[i04_28][0], c_register3[i04_28][1], c_register3[i04_28][2], c_register3[i04_28][3]));
    }
  }
}
