// Normalisation of lines of data that are (before, length, after): a line goes along the middle, and
// line n is (n / after, n % after). An element of many sums is read once a pass, so what matters is
// that a warp reads neighbours. What is summed along contiguous memory has a block to itself; of
// what is not, 32 sums beside one another share a block of 32 threads by some lanes. Sums along
// lines are of the first kind if after is 1, those over all lines (of gamma and beta) if it is not.
// Formulas: symgraph/ops/{nn,normalize}.py.

struct Share {  // a thread's part of a sum: which one, its first term, and to the next
    i64 sum, first, step;
};

__device__ Share share_of_thread() {
    if (blockDim.y == 1) return {blockIdx.x, threadIdx.x, blockDim.x};
    return {(i64)blockIdx.x * 32 + threadIdx.x, threadIdx.y, blockDim.y};
}

// The values of all threads that have a share in a sum joined, the same in each of them.
template <typename Join>
__device__ calc block_total(calc own) {
    if (blockDim.y == 1) return block_join<Join>(own);
    __shared__ calc parts[16][32];
    parts[threadIdx.y][threadIdx.x] = own;
    __syncthreads();
    own = parts[0][threadIdx.x];
    for (int lane = 1; lane < (int)blockDim.y; lane++)
        own = Join::of(own, parts[lane][threadIdx.x]);
    __syncthreads();  // parts may be written again
    return own;
}

// Where a line begins.
__device__ i64 begin_of(i64 line, i64 length, i64 after) {
    if (after == 1) return line * length;
    const Divided by = divided(line, after);
    return by.whole * length * after + by.rest;
}

// -- LayerNorm ------------------------------------------------------------------------------------

extern "C" __global__ void layer_norm(
    const real* x, const real* gamma, const real* beta, real* y, real* mean, real* std,
    i64 lines, i64 length, i64 after, double eps
) {
    const Share own = share_of_thread();
    const i64 count = own.sum < lines ? length : 0, begin = begin_of(own.sum, length, after);
    calc total = 0, squares = 0;
    for (i64 j = own.first; j < count; j += own.step) total += (calc)x[begin + j * after];
    const calc center = block_total<Plus>(total) / length;
    for (i64 j = own.first; j < count; j += own.step) {
        const calc off = (calc)x[begin + j * after] - center;
        squares += off * off;
    }
    const calc width = sqrt(block_total<Plus>(squares) / length + (calc)eps), narrow = 1 / width;
    for (i64 j = own.first; j < count; j += own.step) {
        const calc normal = ((calc)x[begin + j * after] - center) * narrow;
        y[begin + j * after] = (real)(normal * (calc)gamma[j] + (calc)beta[j]);
    }
    if (own.first == 0 && count) {
        mean[own.sum] = (real)center;
        std[own.sum] = (real)width;
    }
}

// The same of rows, with a warp for each, whose threads load packs.
extern "C" __global__ void layer_norm_rows(
    const real* x, const real* gamma, const real* beta, real* y, real* mean, real* std,
    i64 rows, i64 length, i64 aligned, double eps
) {
    const i64 n = (i64)blockIdx.x * blockDim.y + threadIdx.y, begin = PACK * threadIdx.x;
    if (n >= rows) return;
    const real* row = x + n * length;
    calc total = 0, squares = 0;
    for (i64 j = begin; j < length; j += 32 * PACK) {
        const Pack<calc> own = pack_of(row, j, length, aligned);
        for (int e = 0; e < PACK; e++) total += own.at[e];  // 0 beyond the row
    }
    const calc center = warp_join<Plus>(total) / length;
    for (i64 j = begin; j < length; j += 32 * PACK) {
        const Pack<calc> own = pack_of(row, j, length, aligned);
        for (int e = 0; e < PACK; e++)
            if (j + e < length) squares += (own.at[e] - center) * (own.at[e] - center);
    }
    const calc width = sqrt(warp_join<Plus>(squares) / length + (calc)eps), narrow = 1 / width;
    for (i64 j = begin; j < length; j += 32 * PACK) {
        Pack<calc> own = pack_of(row, j, length, aligned);
        const Pack<calc> by = pack_of(gamma, j, length, aligned);
        const Pack<calc> more = pack_of(beta, j, length, aligned);
        for (int e = 0; e < PACK; e++)
            own.at[e] = (own.at[e] - center) * narrow * by.at[e] + more.at[e];
        put_pack(y + n * length, j, length, aligned, own);
    }
    if (threadIdx.x == 0) {
        mean[n] = (real)center;
        std[n] = (real)width;
    }
}

extern "C" __global__ void layer_norm_grad(
    const real* x, const real* gamma, const real* mean, const real* std, const real* grad,
    real* of_x, i64 lines, i64 length, i64 after
) {
    const Share own = share_of_thread();
    const i64 count = own.sum < lines ? length : 0, begin = begin_of(own.sum, length, after);
    const calc center = count ? (calc)mean[own.sum] : (calc)0;
    const calc narrow = count ? 1 / (calc)std[own.sum] : (calc)0;
    calc total = 0, along = 0;
    for (i64 j = own.first; j < count; j += own.step) {
        const calc g = (calc)grad[begin + j * after] * (calc)gamma[j];
        total += g;
        along += g * (((calc)x[begin + j * after] - center) * narrow);
    }
    total = block_total<Plus>(total) / length;
    along = block_total<Plus>(along) / length;
    for (i64 j = own.first; j < count; j += own.step) {
        const i64 at = begin + j * after;
        const calc normal = ((calc)x[at] - center) * narrow;
        of_x[at] = (real)(((calc)grad[at] * (calc)gamma[j] - total - normal * along) * narrow);
    }
}

extern "C" __global__ void layer_norm_grad_rows(
    const real* x, const real* gamma, const real* mean, const real* std, const real* grad,
    real* of_x, i64 rows, i64 length, i64 aligned
) {
    const i64 n = (i64)blockIdx.x * blockDim.y + threadIdx.y, begin = PACK * threadIdx.x;
    if (n >= rows) return;
    const calc center = (calc)mean[n], narrow = 1 / (calc)std[n];
    calc total = 0, along = 0;
    for (i64 j = begin; j < length; j += 32 * PACK) {
        const Pack<calc> own = pack_of(x + n * length, j, length, aligned);
        const Pack<calc> by = pack_of(gamma, j, length, aligned);
        const Pack<calc> g = pack_of(grad + n * length, j, length, aligned);
        for (int e = 0; e < PACK; e++) {  // g is 0 beyond the row
            total += g.at[e] * by.at[e];
            along += g.at[e] * by.at[e] * ((own.at[e] - center) * narrow);
        }
    }
    total = warp_join<Plus>(total) / length;
    along = warp_join<Plus>(along) / length;
    for (i64 j = begin; j < length; j += 32 * PACK) {
        const Pack<calc> own = pack_of(x + n * length, j, length, aligned);
        const Pack<calc> by = pack_of(gamma, j, length, aligned);
        Pack<calc> g = pack_of(grad + n * length, j, length, aligned);
        for (int e = 0; e < PACK; e++) {
            const calc normal = (own.at[e] - center) * narrow;
            g.at[e] = (g.at[e] * by.at[e] - total - normal * along) * narrow;
        }
        put_pack(of_x + n * length, j, length, aligned, g);
    }
}

// parts (2, gridDim.y, length): of as many runs of lines, the sums for gamma and for beta.
extern "C" __global__ void layer_norm_parts(
    const real* x, const real* mean, const real* std, const real* grad, calc* parts,
    i64 lines, i64 length, i64 after, i64 run
) {
    const Share own = share_of_thread();
    const i64 start = blockIdx.y * run, end = start + run < lines ? start + run : lines;
    calc total = 0, along = 0;
    if (own.sum < length)
        for (i64 n = start + own.first; n < end; n += own.step) {
            const i64 at = begin_of(n, length, after) + own.sum * after;
            const calc g = (calc)grad[at];
            total += g;
            along += g * (((calc)x[at] - (calc)mean[n]) / (calc)std[n]);
        }
    total = block_total<Plus>(total);
    along = block_total<Plus>(along);
    if (own.first == 0 && own.sum < length) {
        parts[blockIdx.y * length + own.sum] = along;
        parts[((i64)gridDim.y + blockIdx.y) * length + own.sum] = total;
    }
}

extern "C" __global__ void layer_norm_sums(
    const calc* parts, real* of_gamma, real* of_beta, i64 length, i64 runs
) {
    const i64 j = thread_index();
    if (j >= length) return;
    calc along = 0, total = 0;
    for (i64 run = 0; run < runs; run++) {
        along += parts[run * length + j];
        total += parts[(runs + run) * length + j];
    }
    of_gamma[j] = (real)along;
    of_beta[j] = (real)total;
}

// -- L2Normalization ------------------------------------------------------------------------------

extern "C" __global__ void l2_normalize(
    const real* x, real* y, real* norm, i64 lines, i64 length, i64 after, double eps
) {
    const Share own = share_of_thread();
    const i64 count = own.sum < lines ? length : 0, begin = begin_of(own.sum, length, after);
    calc squares = 0;
    for (i64 j = own.first; j < count; j += own.step) {
        const calc value = (calc)x[begin + j * after];
        squares += value * value;
    }
    const calc width = sqrt(block_total<Plus>(squares) + (calc)eps);
    for (i64 j = own.first; j < count; j += own.step)
        y[begin + j * after] = (real)((calc)x[begin + j * after] / width);
    if (own.first == 0 && count) norm[own.sum] = (real)width;
}

// -- sums and softmax -----------------------------------------------------------------------------

extern "C" __global__ void sum_lines(
    const real* x, real* out, i64 lines, i64 length, i64 after, double divisor
) {
    const Share own = share_of_thread();
    const i64 count = own.sum < lines ? length : 0, begin = begin_of(own.sum, length, after);
    calc total = 0;
    for (i64 j = own.first; j < count; j += own.step) total += (calc)x[begin + j * after];
    total = block_total<Plus>(total);
    if (own.first == 0 && count) out[own.sum] = (real)(total / (calc)divisor);
}

extern "C" __global__ void softmax_lines(
    const real* x, real* y, i64 lines, i64 length, i64 after
) {
    const Share own = share_of_thread();
    const i64 count = own.sum < lines ? length : 0, begin = begin_of(own.sum, length, after);
    calc top = count ? (calc)x[begin] : (calc)0, total = 0;
    for (i64 j = own.first; j < count; j += own.step)
        top = Greater::of(top, (calc)x[begin + j * after]);
    top = block_total<Greater>(top);
    for (i64 j = own.first; j < count; j += own.step)
        total += exp((calc)x[begin + j * after] - top);
    total = block_total<Plus>(total);
    for (i64 j = own.first; j < count; j += own.step)
        y[begin + j * after] = (real)(exp((calc)x[begin + j * after] - top) / total);
}

extern "C" __global__ void softmax_grad_lines(
    const real* y, const real* grad, real* out, i64 lines, i64 length, i64 after
) {
    const Share own = share_of_thread();
    const i64 count = own.sum < lines ? length : 0, begin = begin_of(own.sum, length, after);
    calc total = 0;
    for (i64 j = own.first; j < count; j += own.step)
        total += (calc)y[begin + j * after] * (calc)grad[begin + j * after];
    total = block_total<Plus>(total);
    for (i64 j = own.first; j < count; j += own.step) {
        const i64 at = begin + j * after;
        out[at] = (real)((calc)y[at] * ((calc)grad[at] - total));
    }
}
