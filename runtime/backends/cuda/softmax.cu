// Softmax, its gradients and its figures of rows: a block a row where a row is summed. A thread
// goes over the same packs of elements in every pass, so an output may lie where the data does; the
// passes after the first find the row in the cache. Packs are loaded at once where `aligned` says that
// all rows allow it; the order of a sum is the same. Formulas: symgraph/ops/{softmax,loss,sharded}.py.

// -- rows -----------------------------------------------------------------------------------------

// Calls f(value, j) for each element of this thread, by packs.
template <typename F>
__device__ inline void each_of_row(const real* row, i64 columns, i64 aligned, F f) {
    for (i64 j = PACK * threadIdx.x; j < columns; j += PACK * blockDim.x) {
        const Pack<calc> own = pack_of(row, j, columns, aligned);
        for (int e = 0; e < PACK; e++)
            if (j + e < columns) f(own.at[e], j + e);
    }
}

// Writes f(value, j) for each element of this thread.
template <typename F>
__device__ inline void map_row(const real* row, real* to, i64 columns, i64 aligned, F f) {
    for (i64 j = PACK * threadIdx.x; j < columns; j += PACK * blockDim.x) {
        Pack<calc> own = pack_of(row, j, columns, aligned);
        for (int e = 0; e < PACK; e++)
            if (j + e < columns) own.at[e] = f(own.at[e], j + e);
        put_pack(to, j, columns, aligned, own);
    }
}

__device__ calc block_greatest(const real* row, i64 columns, i64 aligned) {
    calc top = (calc)row[0];
    each_of_row(row, columns, aligned, [&](calc x, i64) { top = Greater::of(top, x); });
    return block_join<Greater>(top);
}

__device__ calc block_exp_sum(const real* row, i64 columns, i64 aligned, calc top) {
    calc total = 0;
    each_of_row(row, columns, aligned, [&](calc x, i64) { total += exp(x - top); });
    return block_join<Plus>(total);
}

extern "C" __global__ void softmax_rows(const real* x, real* y, i64 columns, i64 aligned) {
    const real* row = x + blockIdx.x * columns;
    const calc top = block_greatest(row, columns, aligned);
    const calc total = block_exp_sum(row, columns, aligned, top);
    map_row(row, y + blockIdx.x * columns, columns, aligned, [=](calc own, i64) {
        return exp(own - top) / total;
    });
}

extern "C" __global__ void log_softmax_rows(const real* x, real* y, i64 columns, i64 aligned) {
    const real* row = x + blockIdx.x * columns;
    const calc top = block_greatest(row, columns, aligned);
    const calc rest = log(block_exp_sum(row, columns, aligned, top));
    map_row(row, y + blockIdx.x * columns, columns, aligned, [=](calc own, i64) {
        return own - top - rest;
    });
}

extern "C" __global__ void softmax_grad_rows(
    const real* y, const real* grad, real* out, i64 columns, i64 aligned
) {
    const real *row = y + blockIdx.x * columns, *other = grad + blockIdx.x * columns;
    calc total = 0;
    each_of_row(row, columns, aligned, [&](calc own, i64 j) { total += own * (calc)other[j]; });
    total = block_join<Plus>(total);
    map_row(row, out + blockIdx.x * columns, columns, aligned, [=](calc own, i64 j) {
        return own * ((calc)other[j] - total);
    });
}

extern "C" __global__ void log_softmax_grad_rows(
    const real* y, const real* grad, real* out, i64 columns, i64 aligned
) {
    const real *row = y + blockIdx.x * columns, *other = grad + blockIdx.x * columns;
    calc total = 0;
    each_of_row(other, columns, aligned, [&](calc own, i64) { total += own; });
    total = block_join<Plus>(total);
    map_row(row, out + blockIdx.x * columns, columns, aligned, [=](calc own, i64 j) {
        return (calc)other[j] - exp(own) * total;
    });
}

// figures (2, rows): the maximum of each row, at least `least`, and the sum of exp(row - it).
extern "C" __global__ void row_figures(
    const real* x, calc* figures, i64 rows, i64 columns, i64 aligned, calc least
) {
    const real* row = x + blockIdx.x * columns;
    const calc top = Greater::of(block_greatest(row, columns, aligned), least);
    const calc total = block_exp_sum(row, columns, aligned, top);
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
