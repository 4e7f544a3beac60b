// C = A · B on tensor cores: A in block sparse rows (BSR) of 128 × 128 blocks, B and C dense, all bf16 and row-major,
// sums in float32. Needs compute capability 8.0.
//
// A thread block computes a tile of 128 × 128 of C from the blocks that one block row of A holds, 64 columns of a block
// at a time. Three such slices of A and B are in shared memory: two on their way (cp.async) while one is multiplied
// (ldmatrix, mma.sync). Rows of 16-byte chunks are XOR-swizzled, so that neither copies nor ldmatrix meet bank
// conflicts. Four warps, 64 × 64 of the tile each: 128 float32 sums a thread.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace bsr {  // with a name: nvcc would make one of the file's path, and another library in every folder

constexpr int kBlock = 128;    // edge of a BSR block, and of the tile of C
constexpr int kDepth = 64;     // of a slice
constexpr int kStages = 3;     // slices in shared memory
constexpr int kThreads = 128;  // four warps, 2 × 2
constexpr int kWarpTile = 64;
constexpr int kChunk = 8;  // bf16 elements in 16 bytes
constexpr int kSlices = kBlock / kDepth;
constexpr int kSliceElements = kBlock * kDepth;  // of A; of B as many
constexpr int kSharedBytes = kStages * 2 * kSliceElements * static_cast<int>(sizeof(__nv_bfloat16));

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from global to shared memory; zeros where `inside` is false.
__device__ __forceinline__ void copy_chunk(__nv_bfloat16* to, const __nv_bfloat16* from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(inside ? 16 : 0));
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }

template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8 × 8 matrices; lane l names row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(unsigned (&into)[4], const __nv_bfloat16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
                 : "r"(shared_address(row)));
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&into)[4], const __nv_bfloat16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(into[0]), "=r"(into[1]), "=r"(into[2]), "=r"(into[3])
                 : "r"(shared_address(row)));
}

// sums += a · b, of 16 × 16 and 16 × 8 elements.
__device__ __forceinline__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Place of a 16-byte chunk in a slice whose rows hold kWidth elements.
template <int kWidth>
__device__ __forceinline__ int place(int row, int chunk) {
    return row * kWidth + (chunk ^ (row & 7)) * kChunk;
}

// Every thread copies its share of slice `step` of the block row that begins at block `first`.
__device__ __forceinline__ void copy_slice(__nv_bfloat16* a, __nv_bfloat16* b, const __nv_bfloat16* values,
                                           const int* columns, const __nv_bfloat16* dense, int first, int step,
                                           int column, int n) {
    const int block = first + step / kSlices;
    const int depth = step % kSlices * kDepth;
    const __nv_bfloat16* from_a = values + static_cast<size_t>(block) * kBlock * kBlock + depth;
    const __nv_bfloat16* from_b = dense + (static_cast<size_t>(columns[block]) * kBlock + depth) * n + column;
    constexpr int kChunksA = kDepth / kChunk, kChunksB = kBlock / kChunk;
#pragma unroll
    for (int i = threadIdx.x; i < kSliceElements / kChunk; i += kThreads) {
        const int row = i / kChunksA, chunk = i % kChunksA;
        copy_chunk(a + place<kDepth>(row, chunk), from_a + row * kBlock + chunk * kChunk, true);
    }
#pragma unroll
    for (int i = threadIdx.x; i < kSliceElements / kChunk; i += kThreads) {
        const int row = i / kChunksB, chunk = i % kChunksB;
        const bool inside = column + chunk * kChunk < n;
        // A chunk past the edge is filled with zeros; its address must still be one.
        copy_chunk(b + place<kBlock>(row, chunk),
                   inside ? from_b + static_cast<size_t>(row) * n + chunk * kChunk : dense, inside);
    }
}

// Grid: (block rows, tiles along n). Neighbours share a panel of B, which they find in L2.
__global__ void __launch_bounds__(kThreads, 2)
    bsr_gemm_kernel(const __nv_bfloat16* __restrict__ values, const int* __restrict__ row_starts,
                    const int* __restrict__ columns, const __nv_bfloat16* __restrict__ dense,
                    __nv_bfloat16* __restrict__ out, int n) {
    extern __shared__ __align__(128) __nv_bfloat16 shared[];
    const int column = blockIdx.y * kBlock;
    const int first = row_starts[blockIdx.x];
    const int steps = (row_starts[blockIdx.x + 1] - first) * kSlices;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_row = warp / 2 * kWarpTile, warp_column = warp % 2 * kWarpTile;

    float sums[4][8][4] = {};
    const auto slice = [&](int step) { return shared + step % kStages * 2 * kSliceElements; };
    const auto copy = [&](int step) {
        if (step < steps) {
            __nv_bfloat16* a = slice(step);
            copy_slice(a, a + kSliceElements, values, columns, dense, first, step, column, n);
        }
        commit_copies();  // an empty group too: wait_for_copies counts groups
    };

#pragma unroll
    for (int step = 0; step < kStages - 1; ++step) copy(step);
    for (int step = 0; step < steps; ++step) {
        wait_for_copies<kStages - 2>();
        __syncthreads();  // this slice is there for all, and the one before is done with
        copy(step + kStages - 1);
        const __nv_bfloat16* a = slice(step);
        const __nv_bfloat16* b = a + kSliceElements;
#pragma unroll
        for (int k = 0; k < kDepth; k += 16) {
            unsigned left[4][4], right[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = warp_row + i * 16 + lane % 16;
                load_matrices(left[i], a + place<kDepth>(row, k / kChunk + lane / 16));
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int chunk = (warp_column + j * 16) / kChunk + lane / 16;
                load_matrices_transposed(right[j], b + place<kBlock>(k + lane % 16, chunk));
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    multiply_add(sums[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]);
            }
        }
    }

#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int to = column + warp_column + j * 8 + lane % 4 * 2;
            if (to >= n) continue;  // n is a multiple of 8: a pair is inside or outside as a whole
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const size_t row = static_cast<size_t>(blockIdx.x) * kBlock + warp_row + i * 16 + half * 8 + lane / 4;
                *reinterpret_cast<__nv_bfloat162*>(out + row * n + to) =
                    __floats2bfloat162_rn(sums[i][j][half * 2], sums[i][j][half * 2 + 1]);
            }
        }
    }
}

}  // namespace bsr

using namespace bsr;

// Bytes of dynamic shared memory of a thread block.
extern "C" int bsr_gemm_shared_memory() { return kSharedBytes; }

// Queues C[128 · block_rows, n] = A · B on `stream`. A: `values` [blocks, 128, 128], `row_starts` [block_rows + 1] and
// `columns` [blocks] as int32, as in torch's BSR tensors. n is a multiple of 8 and pointers are aligned to 16 bytes.
// Returns a cudaError_t.
extern "C" int bsr_gemm(const void* values, const void* row_starts, const void* columns, const void* dense, void* out,
                        int block_rows, int n, void* stream) {
    if (block_rows < 0 || n < 0 || n % kChunk != 0) return cudaErrorInvalidValue;
    if (block_rows == 0 || n == 0) return cudaSuccess;
    const cudaError_t error =
        cudaFuncSetAttribute(bsr_gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    if (error != cudaSuccess) return error;
    const dim3 grid(block_rows, (n + kBlock - 1) / kBlock);
    bsr_gemm_kernel<<<grid, kThreads, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const __nv_bfloat16*>(values), static_cast<const int*>(row_starts),
        static_cast<const int*>(columns), static_cast<const __nv_bfloat16*>(dense),
        static_cast<__nv_bfloat16*>(out), n);
    return cudaGetLastError();
}
