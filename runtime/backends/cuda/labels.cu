// Kernels that read labels: the head's gradient, cross entropy, and picks of probabilities. A label that
// is neither a class nor ignored cannot raise here: it is left in `wrong` (see rank_memory.py) and makes
// NaN. A shard has the classes from `begin` on; of whole rows that is 0.

const i64 IGNORED = -1, NO_CLASS = -2;

__device__ i64 class_of(number label, double ignore, i64 classes, double* wrong) {
    const double value = (double)label;
    if (value == ignore) return IGNORED;
    if (value >= 0 && value < (double)classes) return (i64)label;
    *wrong = value;
    return NO_CLASS;
}

__device__ calc not_a_number() {
    return (calc)nan("");
}

// (prob - onehot(label)) * grad_scale / divisor; zero where the label is ignored.
extern "C" __global__ void head_grad(
    const real* prob, const number* label, const double* divisor, real* out, double* wrong,
    i64 rows, i64 columns, i64 begin, i64 classes, double ignore, double grad_scale, i64 aligned
) {
    __shared__ calc scale;  // a division of doubles takes long
    if (threadIdx.x == 0) scale = (calc)(grad_scale / *divisor);
    __syncthreads();
    const i64 j = PACK * thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 chosen = class_of(label[row], ignore, classes, wrong);
        Pack<calc> own = pack_of(prob + row * columns, j, columns, aligned);
        for (int e = 0; e < PACK; e++) {
            const calc hot = chosen == begin + j + e ? (calc)1 : (calc)0;
            own.at[e] = (own.at[e] - hot) * scale;
            if (chosen == IGNORED) own.at[e] = 0;
            if (chosen == NO_CLASS) own.at[e] = not_a_number();
        }
        put_pack(out + row * columns, j, columns, aligned, own);
    }
}

// softmax(x) - onehot(label), by the figures of whole rows; an ignored label counts as the first.
extern "C" __global__ void residual(
    const real* x, const number* label, const calc* figures, real* out, double* wrong,
    i64 rows, i64 columns, i64 begin, i64 classes, double ignore
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * columns + j, chosen = class_of(label[row], ignore, classes, wrong);
        const i64 hot = chosen == IGNORED ? 0 : chosen;
        calc found = exp((calc)x[at] - figures[row]) / figures[rows + row];
        if (hot == begin + j) found -= 1;
        if (chosen == NO_CLASS) found = not_a_number();
        out[at] = (real)found;
    }
}

// One block: the sum of -log of the probabilities of the labels that are classes of the shard.
extern "C" __global__ void sum_losses(
    const real* x, const number* label, const calc* figures, real* out, double* wrong,
    i64 rows, i64 columns, i64 begin, i64 classes, double ignore
) {
    double total = 0;
    for (i64 row = threadIdx.x; row < rows; row += blockDim.x) {
        const i64 chosen = class_of(label[row], ignore, classes, wrong);
        const i64 at = (chosen == IGNORED ? 0 : chosen) - begin;
        if (chosen == NO_CLASS)
            total = nan("");
        else if (0 <= at && at < columns)
            total += log((double)figures[rows + row])
                - ((double)(calc)x[row * columns + at] - (double)figures[row]);
    }
    total = block_join<Plus>(total);
    if (threadIdx.x == 0) *out = (real)(calc)total;
}

// Each row's number at its label, the first for an ignored one; 0 where that is not in the shard.
extern "C" __global__ void pick_rows(
    const real* prob, const number* label, real* out, double* wrong,
    i64 rows, i64 columns, i64 begin, i64 classes, double ignore
) {
    const i64 row = thread_index();
    if (row >= rows) return;
    const i64 chosen = class_of(label[row], ignore, classes, wrong);
    const i64 at = (chosen == IGNORED ? 0 : chosen) - begin;
    calc found = 0 <= at && at < columns ? (calc)prob[row * columns + at] : (calc)0;
    if (chosen == NO_CLASS) found = not_a_number();
    out[row] = (real)found;
}

// One block: sums over the labels that count, of -log(picked) and of 1.
extern "C" __global__ void sum_picked(
    const real* picked, const number* label, double* nll, double* count,
    i64 rows, double ignore, double tiny
) {
    double total = 0, counted = 0;
    for (i64 row = threadIdx.x; row < rows; row += blockDim.x) {
        if ((double)label[row] == ignore) continue;
        const double chosen = (double)(calc)picked[row];
        total -= log(chosen < tiny ? tiny : chosen);
        counted += 1;
    }
    total = block_join<Plus>(total);
    counted = block_join<Plus>(counted);
    if (threadIdx.x == 0) {
        *nll = total;
        *count = counted;
    }
}
