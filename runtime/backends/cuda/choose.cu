// `where` with a condition in a dtype of its own; nothing is calculated.

extern "C" __global__ void choose(
    const number* condition, const real* x, const real* y, real* out, i64 size
) {
    const i64 at = thread_index();
    if (at < size) out[at] = condition[at] != 0 ? x[at] : y[at];
}

extern "C" __global__ void choose_rows(
    const number* condition, const real* x, const real* y, real* out, i64 rows, i64 columns
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * columns + j;
        out[at] = condition[row] != 0 ? x[at] : y[at];
    }
}
