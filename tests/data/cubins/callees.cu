// What linked.cu calls.
#ifndef INNER
#define INNER 9.0f
#endif
#ifndef OUTER
#define OUTER 1.0f
#endif

__device__ __noinline__ float inner(float x) { return x - INNER; }
__device__ __noinline__ float outer(float x) { return inner(x) * inner(x + OUTER); }
