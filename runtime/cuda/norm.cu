// Batch normalisation and its gradient: a block a channel of data that are (before, channels, after).
// A thread goes over the same elements in every pass, so an output may lie where the data do. What
// there is one of a channel is `calc`. Formulas: symgraph/ops/nn.py.

// Where the i-th element of a channel lies.
__device__ i64 place(i64 i, i64 channels, i64 after) {
    return (i / after * channels + blockIdx.x) * after + i % after;
}

// of_batch: by mean and variance of these data, else by the moving ones. fixed: gamma counts as 1.
extern "C" __global__ void batch_norm(
    const real* x, const calc* gamma, const calc* beta, const calc* old_mean, const calc* old_var,
    real* y, calc* mean, calc* var, calc* next_mean, calc* next_var,
    i64 count, i64 channels, i64 after, i64 of_batch, i64 fixed, double eps, double keep
) {
    const i64 c = blockIdx.x;
    const calc moving = old_mean[c], moving_var = old_var[c], shift = beta[c];
    const calc factor = fixed ? (calc)1 : gamma[c];
    calc center = moving, width = moving_var;
    if (of_batch) {
        calc total = 0, squares = 0;
        for (i64 i = threadIdx.x; i < count; i += blockDim.x)
            total += (calc)x[place(i, channels, after)];
        center = block_join<Plus>(total) / count;
        for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
            const calc off = (calc)x[place(i, channels, after)] - center;
            squares += off * off;
        }
        width = block_join<Plus>(squares) / count;
    }
    const calc scale = factor / sqrt(width + (calc)eps);
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        const i64 at = place(i, channels, after);
        y[at] = (real)(((calc)x[at] - center) * scale + shift);
    }
    if (threadIdx.x == 0) {
        const calc old = of_batch ? (calc)keep : (calc)1;
        mean[c] = center;
        var[c] = width;
        next_mean[c] = old * moving + (1 - old) * center;
        next_var[c] = old * moving_var + (1 - old) * width;
    }
}

extern "C" __global__ void batch_norm_grad(
    const real* x, const calc* gamma, const calc* mean, const calc* var, const real* grad,
    real* of_x, calc* of_gamma, calc* of_beta,
    i64 count, i64 channels, i64 after, i64 of_batch, i64 fixed, double eps
) {
    const i64 c = blockIdx.x;
    const calc center = mean[c], narrow = 1 / sqrt(var[c] + (calc)eps);
    const calc scale = fixed ? narrow : narrow * gamma[c];
    calc total = 0, along = 0;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        const i64 at = place(i, channels, after);
        const calc g = (calc)grad[at];
        total += g;
        along += g * (((calc)x[at] - center) * narrow);
    }
    total = block_join<Plus>(total);
    along = block_join<Plus>(along);
    const calc shift = of_batch ? total / count : (calc)0, slope = of_batch ? along / count : (calc)0;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        const i64 at = place(i, channels, after);
        const calc normal = ((calc)x[at] - center) * narrow;
        of_x[at] = (real)(((calc)grad[at] - shift - normal * slope) * scale);
    }
    if (threadIdx.x == 0) {
        of_gamma[c] = fixed ? (calc)0 : along;
        of_beta[c] = total;
    }
}
