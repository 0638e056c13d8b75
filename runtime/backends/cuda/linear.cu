// Kernels beside cuBLAS: a bias added to rows, and the sum of rows that is its gradient.

extern "C" __global__ void add_row(
    real* y, const real* bias, i64 rows, i64 columns, i64 aligned
) {
    const i64 j = PACK * thread_index();
    if (j >= columns) return;
    const Pack<calc> more = pack_of(bias, j, columns, aligned);
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        Pack<calc> own = pack_of(y + row * columns, j, columns, aligned);
        for (int e = 0; e < PACK; e++) own.at[e] += more.at[e];
        put_pack(y + row * columns, j, columns, aligned, own);
    }
}

// Every row is the bias, to which a product is added.
extern "C" __global__ void fill_rows(
    real* y, const real* bias, i64 rows, i64 columns, i64 aligned
) {
    const i64 j = PACK * thread_index();
    if (j >= columns) return;
    const Pack<calc> own = pack_of(bias, j, columns, aligned);
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y)
        put_pack(y + row * columns, j, columns, aligned, own);
}

// A block of (32, LANES) threads sums 32 columns of the rows from `first` to `end`: each lane every
// LANES-th row, then lane by lane. The first lane's threads have the totals.
template <typename T>
__device__ calc block_column_total(const T* x, i64 first, i64 end, i64 columns) {
    __shared__ calc parts[16][32];
    const i64 j = thread_index();
    calc total = 0;
    if (j < columns)
#pragma unroll 8
        for (i64 row = first + threadIdx.y; row < end; row += blockDim.y)
            total += (calc)x[row * columns + j];
    parts[threadIdx.y][threadIdx.x] = total;
    __syncthreads();
    for (int lane = 1; lane < (int)blockDim.y; lane++) total += parts[lane][threadIdx.x];
    return total;
}

extern "C" __global__ void sum_rows(const real* x, real* out, i64 rows, i64 columns) {
    const i64 j = thread_index();
    const calc total = block_column_total(x, 0, rows, columns);
    if (threadIdx.y == 0 && j < columns) out[j] = (real)total;
}

// parts (gridDim.y, columns): of as many runs of rows. Few columns are few blocks otherwise.
extern "C" __global__ void sum_runs(const real* x, calc* parts, i64 rows, i64 columns, i64 run) {
    const i64 j = thread_index(), first = blockIdx.y * run;
    const calc total = block_column_total(x, first, first + run < rows ? first + run : rows, columns);
    if (threadIdx.y == 0 && j < columns) parts[blockIdx.y * columns + j] = total;
}

extern "C" __global__ void sum_parts(const calc* parts, real* out, i64 runs, i64 columns) {
    const i64 j = thread_index();
    const calc total = block_column_total(parts, 0, runs, columns);
    if (threadIdx.y == 0 && j < columns) out[j] = (real)total;
}
