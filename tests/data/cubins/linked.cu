// Kernels that call functions of another file, through a pointer, and by themselves: compiled with -rdc=true.
#ifndef CALLEE
#define CALLEE left
#endif

typedef float (*Function)(float);

extern __device__ float outer(float);
__device__ __noinline__ float left(float x) { return x + 3.0f; }
__device__ __noinline__ float right(float x) { return x + 3.0f; }
__device__ Function functions[2] = {left, right};

#ifdef ADDED
__device__ __noinline__ float another(float x) { return x - 8.0f; }
extern "C" __global__ void added(float* x) { x[0] = another(x[0]); }
#endif

extern "C" __global__ void plain(float* x) { x[0] *= 2.0f; }
extern "C" __global__ void far(float* x) { x[0] = outer(x[0]); }
extern "C" __global__ void chosen(float* x) { x[0] = CALLEE(x[0]); }
extern "C" __global__ void indirect(float* x, int n) { x[0] = functions[n & 1](x[0]); }
extern "C" __global__ void allocates(float** x) { x[0] = new float[4]; }
__device__ __noinline__ float recursive(float x) { return x < 1 ? x : x * recursive(x - 1) + recursive(x - 2); }
extern "C" __global__ void recurses(float* x) { x[0] = recursive(x[0]); }
