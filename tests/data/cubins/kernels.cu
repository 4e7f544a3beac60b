// Kernels whose machine code tests compare. build.py compiles it as it is and with one macro or option changed.
#include <cstdio>

#ifndef FACTOR
#define FACTOR 1.5f
#endif
#ifndef BLOCK
#define BLOCK 128
#endif
#ifndef TYPE
#define TYPE float
#endif
#ifndef FIRST
#define FIRST 1.0f
#endif
#ifndef BIAS
#define BIAS 4.0f
#endif
#ifndef DEEP
#define DEEP 3.25f
#endif
#ifndef NEAR
#define NEAR 0.5f
#endif
#ifdef COLON
#define FORMAT "value: %f\n"
#else
#define FORMAT "value %f\n"
#endif
#ifndef SCRATCH
#define SCRATCH 40
#endif
#ifndef SLACK
#define SLACK 64
#endif
#ifndef ALIGNMENT
#define ALIGNMENT 16
#endif
#ifdef THREADS
#define BOUNDS __launch_bounds__(THREADS)
#else
#define BOUNDS
#endif
#ifdef CLUSTER
#define SHAPE __cluster_dims__(CLUSTER, 1, 1)
#else
#define SHAPE
#endif
#ifdef PARAMETER
#define MORE , int more
#else
#define MORE
#endif

__constant__ float table[8] = {FIRST, 2.0f, 3.0f};
__device__ float bias[4] = {BIAS, 5.0f, 6.0f, 7.0f};
__device__ int counter;

#if ADDED == 1
extern "C" __global__ void added(float* x, int n) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[n];
  __syncthreads();
  x[threadIdx.x] = tile[63 - threadIdx.x];
}
#endif

#if COMMENT == 1
/* What a change to
   comments, and the lines
   that it moves, does. */


#endif
__device__ __noinline__ float deep(float x) { return x * x * DEEP + x; }
__device__ __noinline__ float near(float x) { return deep(x) + deep(x + NEAR); }

#ifndef SWAPPED
extern "C" __global__ void BOUNDS SHAPE scale(float* x, int n MORE) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * 2.0f + FACTOR;  // COMMENT changes what stands here, too
}
#endif

#if ADDED == 2
extern "C" __global__ void added(double* x, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = 1.0 / x[i];
}
#endif

extern "C" __global__ void reduce(const TYPE* x, TYPE* sum) {
  __shared__ __align__(ALIGNMENT) TYPE part[BLOCK];
  part[threadIdx.x] = x[blockIdx.x * BLOCK + threadIdx.x];
  for (int half = BLOCK / 2; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
  }
  if (!threadIdx.x) sum[blockIdx.x] = part[0];
}

#ifdef SWAPPED
extern "C" __global__ void BOUNDS SHAPE scale(float* x, int n MORE) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * 2.0f + FACTOR;
}
#endif

extern "C" __global__ void calls(float* x) { x[threadIdx.x] = near(x[threadIdx.x]); }

extern "C" __global__ void looks_up(float* x) {
  x[threadIdx.x] = table[threadIdx.x & 7] + bias[threadIdx.x & 3];
  atomicAdd(&counter, 1);
}

extern "C" __global__ void prints(float* x) { printf(FORMAT, x[0]); }

extern "C" __global__ void tile(float* x) {
#ifdef DYNAMIC
  extern __shared__ float row[];
#else
  __shared__ float row[SLACK];
#endif
  row[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = row[threadIdx.x ^ 1];
}

extern "C" __global__ void spills(float* x, int n) {
  float local[SCRATCH];
  for (int i = 0; i < 32; i++) local[i] = x[i];
  x[0] = local[n & 31] + local[(n + 1) & 31];
}

extern "C" __global__ void math(float* x) { x[threadIdx.x] = sinf(x[threadIdx.x]) / x[threadIdx.x + 1]; }

extern "C" __global__ void chooses(float* x, int n) {
  switch (n) {
    case 0: x[1] = expf(x[0]); break;
    case 1: x[2] = x[0] / x[3]; break;
    case 2: x[3] = logf(x[1]); break;
    case 3: x[4] = sqrtf(x[1]); break;
    case 4: x[5] = x[1] * x[2]; break;
    case 5: x[6] = cosf(x[1]); break;
    case 6: x[7] = x[1] - 1; break;
    default: x[0] = 0;
  }
}

#if ADDED == 3
extern "C" __global__ void added(int* x) { x[threadIdx.x] = __shfl_xor_sync(~0u, x[threadIdx.x], 1); }
#endif
