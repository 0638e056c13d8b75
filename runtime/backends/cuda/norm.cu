// Batch normalisation and its gradient, in one or in parts: a block a channel of data that are
// (before, channels, after). A thread goes over the same elements in every pass, so an output may
// lie where the data do. What there is one of a channel is `calc`. Formulas: symgraph/ops/nn.py and
// moments.py.

// Where the i-th element of a channel lies.
__device__ i64 place(i64 i, i64 channels, i64 after) {
    const Divided by = divided(i, after);
    return (by.whole * channels + blockIdx.x) * after + by.rest;
}

// Mean and variance of the channel.
__device__ void block_moments(
    const real* x, i64 count, i64 channels, i64 after, calc* mean, calc* var
) {
    calc total = 0, squares = 0;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x)
        total += (calc)x[place(i, channels, after)];
    const calc center = block_join<Plus>(total) / count;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        const calc off = (calc)x[place(i, channels, after)] - center;
        squares += off * off;
    }
    *mean = center;
    *var = block_join<Plus>(squares) / count;
}

// Of the channel's gradient: its sum, and that of its products with the normalised data.
__device__ void block_slopes(
    const real* x, const real* grad, i64 count, i64 channels, i64 after, calc center, calc narrow,
    calc* total, calc* along
) {
    calc sum = 0, product = 0;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        const i64 at = place(i, channels, after);
        const calc g = (calc)grad[at];
        sum += g;
        product += g * (((calc)x[at] - center) * narrow);
    }
    *total = block_join<Plus>(sum);
    *along = block_join<Plus>(product);
}

// -- in one ---------------------------------------------------------------------------------------

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
    if (of_batch) block_moments(x, count, channels, after, &center, &width);
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
    calc total, along;
    block_slopes(x, grad, count, channels, after, center, narrow, &total, &along);
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

// -- in parts -------------------------------------------------------------------------------------

extern "C" __global__ void moments(
    const real* x, calc* mean, calc* var, calc* counted, i64 count, i64 channels, i64 after
) {
    calc center, width;
    block_moments(x, count, channels, after, &center, &width);
    if (threadIdx.x != 0) return;
    mean[blockIdx.x] = center;
    var[blockIdx.x] = width;
    if (blockIdx.x == 0) *counted = (calc)count;
}

extern "C" __global__ void moments_grad(
    const real* x, const calc* mean, const calc* of_mean, const calc* of_var, real* of_x,
    i64 count, i64 channels, i64 after
) {
    const i64 c = blockIdx.x;
    const calc center = mean[c], slope = of_var[c] * 2 / count, shift = of_mean[c] / count;
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        const i64 at = place(i, channels, after);
        of_x[at] = (real)(((calc)x[at] - center) * slope + shift);
    }
}

extern "C" __global__ void normalize(
    const real* x, const calc* gamma, const calc* beta, const calc* mean, const calc* var, real* y,
    i64 count, i64 channels, i64 after, i64 fixed, double eps
) {
    const i64 c = blockIdx.x;
    const calc center = mean[c], shift = beta[c], narrow = 1 / sqrt(var[c] + (calc)eps);
    const calc scale = fixed ? narrow : narrow * gamma[c];
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        const i64 at = place(i, channels, after);
        y[at] = (real)(((calc)x[at] - center) * scale + shift);
    }
}

extern "C" __global__ void normalize_grad(
    const real* x, const calc* gamma, const calc* mean, const calc* var, const real* grad,
    real* of_x, calc* of_gamma, calc* of_beta, calc* of_mean, calc* of_var,
    i64 count, i64 channels, i64 after, i64 fixed, double eps
) {
    const i64 c = blockIdx.x;
    const calc center = mean[c], narrow = 1 / sqrt(var[c] + (calc)eps);
    const calc scale = fixed ? narrow : narrow * gamma[c];
    calc total, along;
    block_slopes(x, grad, count, channels, after, center, narrow, &total, &along);
    for (i64 i = threadIdx.x; i < count; i += blockDim.x) {
        const i64 at = place(i, channels, after);
        of_x[at] = (real)((calc)grad[at] * scale);
    }
    if (threadIdx.x == 0) {
        of_gamma[c] = fixed ? (calc)0 : along;
        of_beta[c] = total;
        of_mean[c] = -total * scale;
        of_var[c] = along * scale * narrow / -2;
    }
}

// of_batch: take the batch's, and move the average; else the moving one, which stays.
extern "C" __global__ void moving_average(
    const real* batch, const real* moving, real* chosen, real* next,
    i64 size, i64 of_batch, double keep
) {
    const i64 at = thread_index();
    if (at >= size) return;
    const calc old = (calc)moving[at], own = of_batch ? (calc)batch[at] : old;
    chosen[at] = (real)own;
    next[at] = of_batch ? (real)((calc)keep * old + (1 - (calc)keep) * own) : moving[at];
}
