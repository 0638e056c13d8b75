// Parameter updates in one pass, and squared norms, of float and double. A row of the table tells each
// block where its elements begin in each array, and how many there are; see updates.py. Equations:
// symgraph/frontend/optimizer.py.

__device__ real clipped(real g, real clip) {  // NaN stays
    return g > clip ? clip : g < -clip ? -clip : g;
}

extern "C" __global__ void sgd(const i64* table, real rate, real decay, real scale, real clip) {
    const i64* row = table + 3 * (i64)blockIdx.x;
    real* w = (real*)row[0];
    const real* grad = (const real*)row[1];
    for (i64 j = threadIdx.x; j < row[2]; j += blockDim.x) {
        real g = clipped(grad[j] * scale, clip);
        if (decay != 0) g += w[j] * decay;
        w[j] -= g * rate;
    }
}

extern "C" __global__ void momentum(
    const i64* table, real rate, real decay, real scale, real clip, real keep
) {
    const i64* row = table + 4 * (i64)blockIdx.x;
    real *w = (real*)row[0], *mom = (real*)row[2];
    const real* grad = (const real*)row[1];
    for (i64 j = threadIdx.x; j < row[3]; j += blockDim.x) {
        real g = clipped(grad[j] * scale, clip);
        if (decay != 0) g += w[j] * decay;
        const real step = mom[j] * keep - g * rate;
        mom[j] = step;
        w[j] += step;
    }
}

extern "C" __global__ void adam(
    const i64* table, real rate, real decay, real scale, real clip,
    real beta1, real beta2, real rest1, real rest2, real epsilon, real apart
) {
    const i64* row = table + 5 * (i64)blockIdx.x;
    real *w = (real*)row[0], *mean = (real*)row[2], *var = (real*)row[3];
    const real* grad = (const real*)row[1];
    for (i64 j = threadIdx.x; j < row[4]; j += blockDim.x) {
        real g = grad[j] * scale;
        if (apart != 0) w[j] -= w[j] * decay;
        else if (decay != 0) g += w[j] * decay;
        g = clipped(g, clip);
        const real m = mean[j] * beta1 + g * rest1, v = var[j] * beta2 + g * g * rest2;
        mean[j] = m;
        var[j] = v;
        w[j] -= m / (sqrt(v) + epsilon) * rate;
    }
}

// parts (blocks): sums of squares in float64.
extern "C" __global__ void squares(const i64* table, double* parts) {
    const i64* row = table + 2 * (i64)blockIdx.x;
    const real* x = (const real*)row[0];
    double total = 0;
    for (i64 j = threadIdx.x; j < row[1]; j += blockDim.x) total += (double)x[j] * (double)x[j];
    total = block_join<Plus>(total);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// A block a sum: rows are its first part, the number of parts, and its place in out.
extern "C" __global__ void totals(const i64* sums, const double* parts, double* out) {
    const i64* row = sums + 3 * (i64)blockIdx.x;
    double sum = 0;
    for (i64 j = threadIdx.x; j < row[1]; j += blockDim.x) sum += parts[row[0] + j];
    sum = block_join<Plus>(sum);
    if (threadIdx.x == 0) out[row[2]] = sum;
}
