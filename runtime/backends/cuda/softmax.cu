// Softmax, its gradients and its figures of rows: a block a row where a row is summed. A thread
// goes over the same elements in every pass, so an output may lie where the data does; the passes
// after the first find the row in the cache. Formulas: symgraph/ops/{softmax,loss,sharded}.py.

// -- rows -----------------------------------------------------------------------------------------

__device__ calc block_greatest(const real* row, i64 columns) {
    calc top = (calc)row[0];
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x) top = Greater::of(top, (calc)row[j]);
    return block_join<Greater>(top);
}

__device__ calc block_exp_sum(const real* row, i64 columns, calc top) {
    calc total = 0;
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x) total += exp((calc)row[j] - top);
    return block_join<Plus>(total);
}

extern "C" __global__ void softmax_rows(const real* x, real* y, i64 columns) {
    const real* row = x + blockIdx.x * columns;
    real* to = y + blockIdx.x * columns;
    const calc top = block_greatest(row, columns), total = block_exp_sum(row, columns, top);
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x)
        to[j] = (real)(exp((calc)row[j] - top) / total);
}

extern "C" __global__ void log_softmax_rows(const real* x, real* y, i64 columns) {
    const real* row = x + blockIdx.x * columns;
    real* to = y + blockIdx.x * columns;
    const calc top = block_greatest(row, columns);
    const calc rest = log(block_exp_sum(row, columns, top));
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x)
        to[j] = (real)((calc)row[j] - top - rest);
}

extern "C" __global__ void softmax_grad_rows(
    const real* y, const real* grad, real* out, i64 columns
) {
    const i64 first = blockIdx.x * columns;
    calc total = 0;
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x)
        total += (calc)y[first + j] * (calc)grad[first + j];
    total = block_join<Plus>(total);
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x)
        out[first + j] = (real)((calc)y[first + j] * ((calc)grad[first + j] - total));
}

extern "C" __global__ void log_softmax_grad_rows(
    const real* y, const real* grad, real* out, i64 columns
) {
    const i64 first = blockIdx.x * columns;
    calc total = 0;
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x) total += (calc)grad[first + j];
    total = block_join<Plus>(total);
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x)
        out[first + j] = (real)((calc)grad[first + j] - exp((calc)y[first + j]) * total);
}

// figures (2, rows): the maximum of each row, at least `least`, and the sum of exp(row - it).
extern "C" __global__ void row_figures(
    const real* x, calc* figures, i64 rows, i64 columns, calc least
) {
    const real* row = x + blockIdx.x * columns;
    const calc top = Greater::of(block_greatest(row, columns), least);
    const calc total = block_exp_sum(row, columns, top);
    if (threadIdx.x == 0) {
        figures[blockIdx.x] = top;
        figures[rows + blockIdx.x] = total;
    }
}

extern "C" __global__ void join_figures(const calc* one, const calc* other, calc* out, i64 rows) {
    const i64 i = thread_index();
    if (i >= rows) return;
    const calc top = Greater::of(one[i], other[i]);
    const calc total = one[rows + i] * exp(one[i] - top) + other[rows + i] * exp(other[i] - top);
    out[i] = top;
    out[rows + i] = total;
}

extern "C" __global__ void probability_rows(
    const real* x, const calc* figures, real* y, i64 rows, i64 columns
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * columns + j;
        y[at] = (real)(exp((calc)x[at] - figures[row]) / figures[rows + row]);
    }
}
