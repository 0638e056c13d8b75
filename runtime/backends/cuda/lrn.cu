// Sums over neighbouring channels of data that are (samples, channels, rest), and the normalisation
// by them. Formulas: symgraph/ops/lrn.py.

// The sum over the channels within `reach` of c, of values or of their squares, at one place.
template <bool squared>
__device__ calc neighbours(const real* x, i64 at, i64 c, i64 channels, i64 rest, i64 reach) {
    const i64 first = c < reach ? -c : -reach, last = channels - 1 - c;
    calc total = 0;
    for (i64 k = first; k <= reach && k <= last; k++) {
        const calc value = (calc)x[at + k * rest];
        total += squared ? value * value : value;
    }
    return total;
}

extern "C" __global__ void sum_neighbours(
    const real* x, real* out, i64 rows, i64 rest, i64 channels, i64 reach
) {
    const i64 j = thread_index();
    if (j >= rest) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * rest + j;
        out[at] = (real)neighbours<false>(x, at, divided(row, channels).rest, channels, rest, reach);
    }
}

extern "C" __global__ void lrn(
    const real* x, real* y, real* norm, i64 rows, i64 rest, i64 channels, i64 reach,
    double scale, double least, double power
) {
    const i64 j = thread_index();
    if (j >= rest) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * rest + j;
        const calc total = neighbours<true>(x, at, divided(row, channels).rest, channels, rest, reach);
        const calc sized = total * (calc)scale + (calc)least;
        norm[at] = (real)sized;
        y[at] = (real)((calc)x[at] * pow(sized, (calc)power));
    }
}
