// libtranspose: transposes a matrix of floats on the GPU, a tile at a time through shared memory.
#include <cuda_runtime.h>

namespace {

constexpr int kTile = 32;  // a warp reads and writes whole rows of a tile: 128 bytes
constexpr int kRows = 8;   // that a block handles at once
constexpr int kPad = 1;    // a column of the tile then lies in 32 banks, not in one

__global__ void transpose_tiled(const float* source, float* target, int rows, int columns) {
  __shared__ float tile[kTile][kTile + kPad];
  int column = blockIdx.x * kTile + threadIdx.x;
  int row = blockIdx.y * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += kRows)
    if (row + i < rows && column < columns)
      tile[threadIdx.y + i][threadIdx.x] = source[static_cast<size_t>(row + i) * columns + column];
  __syncthreads();
  column = blockIdx.y * kTile + threadIdx.x;  // of the target
  row = blockIdx.x * kTile + threadIdx.y;
  for (int i = 0; i < kTile; i += kRows)
    if (row + i < columns && column < rows)
      target[static_cast<size_t>(row + i) * rows + column] = tile[threadIdx.x][threadIdx.y + i];
}

}  // namespace

// Queues target[columns, rows] = source[rows, columns] transposed on `stream`. At most 65535 tiles of rows.
// Returns a cudaError_t.
extern "C" int transpose(const void* source, void* target, int rows, int columns, void* stream) {
  if (rows < 1 || columns < 1) return cudaErrorInvalidValue;
  const dim3 grid((columns + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
  transpose_tiled<<<grid, dim3(kTile, kRows), 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float*>(source), static_cast<float*>(target), rows, columns);
  return cudaGetLastError();
}
