// Parameter updates in one pass each, and squared norms, of float and double. Equations: symgraph/frontend/optimizer.py.

__device__ real clipped(real g, real clip) {  // NaN stays
    return g > clip ? clip : g < -clip ? -clip : g;
}

extern "C" __global__ void sgd(
    real* w, const real* grad, i64 size, real rate, real decay, real scale, real clip
) {
    const i64 j = thread_index();
    if (j >= size) return;
    real g = clipped(grad[j] * scale, clip);
    if (decay != 0) g += w[j] * decay;
    w[j] -= g * rate;
}

extern "C" __global__ void momentum(
    real* w, const real* grad, real* mom, i64 size,
    real rate, real decay, real scale, real clip, real keep
) {
    const i64 j = thread_index();
    if (j >= size) return;
    real g = clipped(grad[j] * scale, clip);
    if (decay != 0) g += w[j] * decay;
    const real step = mom[j] * keep - g * rate;
    mom[j] = step;
    w[j] += step;
}

extern "C" __global__ void adam(
    real* w, const real* grad, real* mean, real* var, i64 size,
    real rate, real decay, real scale, real clip,
    real beta1, real beta2, real rest1, real rest2, real epsilon
) {
    const i64 j = thread_index();
    if (j >= size) return;
    real g = grad[j] * scale;
    if (decay != 0) g += w[j] * decay;
    g = clipped(g, clip);
    const real m = mean[j] * beta1 + g * rest1, v = var[j] * beta2 + g * g * rest2;
    mean[j] = m;
    var[j] = v;
    w[j] -= m / (sqrt(v) + epsilon) * rate;
}

// parts (blocks): sums of squares in float64.
extern "C" __global__ void squares(const real* x, double* parts, i64 size) {
    double total = 0;
    for (i64 j = thread_index(); j < size; j += (i64)gridDim.x * blockDim.x)
        total += (double)x[j] * (double)x[j];
    total = block_join<Plus>(total);
    if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// One block: the sum of parts.
extern "C" __global__ void total(const double* parts, double* out, i64 count) {
    double sum = 0;
    for (i64 j = threadIdx.x; j < count; j += blockDim.x) sum += parts[j];
    sum = block_join<Plus>(sum);
    if (threadIdx.x == 0) *out = sum;
}
