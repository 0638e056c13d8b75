// What stands beside cuBLAS: a bias added to rows, and the sum of rows that is its gradient.

extern "C" __global__ void add_row(real* y, const real* bias, i64 rows, i64 columns) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y)
        y[row * columns + j] = (real)((calc)y[row * columns + j] + (calc)bias[j]);
}

// A block of (32, LANES) threads sums 32 columns: each lane every LANES-th row, then lane by lane.
extern "C" __global__ void sum_rows(const real* x, real* out, i64 rows, i64 columns) {
    __shared__ calc parts[16][32];
    const i64 j = thread_index();
    calc total = 0;
    if (j < columns)
        for (i64 row = threadIdx.y; row < rows; row += blockDim.y)
            total += (calc)x[row * columns + j];
    parts[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.y != 0 || j >= columns) return;
    for (int lane = 1; lane < (int)blockDim.y; lane++) total += parts[lane][threadIdx.x];
    out[j] = (real)total;
}
