// Maxima, sums and averages of windows of images, and their gradients: a thread a pixel, which goes
// over the windows that have it in their order. Formulas: symgraph/ops/pool.py.

struct Windows {
    i64 rows, width, down, across, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x;
};

struct Span {
    i64 begin, end;
};

// The pixels of a window along one axis.
__device__ Span pixels(i64 at, i64 kernel, i64 stride, i64 pad, i64 length) {
    const i64 start = at * stride - pad, stop = start + kernel;
    return {start > 0 ? start : 0, stop < length ? stop : length};
}

// The windows that have a pixel along one axis.
__device__ Span windows(i64 pixel, i64 kernel, i64 stride, i64 pad, i64 count) {
    const i64 before = pixel + pad - kernel, last = divided(pixel + pad, stride).whole + 1;
    return {before < 0 ? 0 : divided(before, stride).whole + 1, last < count ? last : count};
}

// How many elements an average divides by along one axis, with those of the padding or without.
__device__ i64 size_of(i64 at, i64 kernel, i64 stride, i64 pad, i64 length, i64 padding) {
    const i64 low = padding ? -pad : 0, high = length + (padding ? pad : 0);
    const i64 start = at * stride - pad, stop = start + kernel;
    return (stop < high ? stop : high) - (start > low ? start : low);
}

__device__ calc divisor(const Windows& w, i64 y, i64 x, i64 mean, i64 padding) {
    if (!mean) return 1;
    return (calc)(size_of(y, w.kernel_y, w.stride_y, w.pad_y, w.rows, padding)
        * size_of(x, w.kernel_x, w.stride_x, w.pad_x, w.width, padding));
}

// The first maximum of a window, as a pixel's number; -1 if there is a NaN. top: the maximum.
__device__ i64 first_maximum(const Windows& w, const real* image, i64 y, i64 x, calc* top) {
    const Span down = pixels(y, w.kernel_y, w.stride_y, w.pad_y, w.rows);
    const Span across = pixels(x, w.kernel_x, w.stride_x, w.pad_x, w.width);
    i64 found = down.begin * w.width + across.begin;
    *top = (calc)image[found];
    for (i64 i = down.begin; i < down.end; i++)
        for (i64 j = across.begin; j < across.end; j++) {
            const calc value = (calc)image[i * w.width + j];
            if (value > *top) found = i * w.width + j;
            *top = Greater::of(*top, value);
        }
    return *top == *top ? found : -1;
}

extern "C" __global__ void maxima(
    const real* x, real* y, i64 images, i64 rows, i64 width, i64 down, i64 across,
    i64 kernel_y, i64 kernel_x, i64 stride_y, i64 stride_x, i64 pad_y, i64 pad_x
) {
    const Windows w = {
        rows, width, down, across, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x
    };
    const i64 p = thread_index();
    if (p >= down * across) return;
    const Divided at = divided(p, across);
    for (i64 image = blockIdx.y; image < images; image += gridDim.y) {
        calc top;
        first_maximum(w, x + image * rows * width, at.whole, at.rest, &top);
        y[image * down * across + p] = (real)top;
    }
}

extern "C" __global__ void maxima_grad(
    const real* grad, const real* x, real* out, i64 images, i64 rows, i64 width, i64 down,
    i64 across, i64 kernel_y, i64 kernel_x, i64 stride_y, i64 stride_x, i64 pad_y, i64 pad_x
) {
    const Windows w = {
        rows, width, down, across, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x
    };
    const i64 p = thread_index();
    if (p >= rows * width) return;
    const Divided at = divided(p, width);
    const Span ys = windows(at.whole, kernel_y, stride_y, pad_y, down);
    const Span xs = windows(at.rest, kernel_x, stride_x, pad_x, across);
    for (i64 image = blockIdx.y; image < images; image += gridDim.y) {
        calc total = 0, top;
        for (i64 i = ys.begin; i < ys.end; i++)
            for (i64 j = xs.begin; j < xs.end; j++)
                if (first_maximum(w, x + image * rows * width, i, j, &top) == p)
                    total += (calc)grad[(image * down + i) * across + j];
        out[image * rows * width + p] = (real)total;
    }
}

// mean: divide by the elements of the window, those of the padding too if `padding`.
extern "C" __global__ void sums(
    const real* x, real* y, i64 images, i64 rows, i64 width, i64 down, i64 across,
    i64 kernel_y, i64 kernel_x, i64 stride_y, i64 stride_x, i64 pad_y, i64 pad_x,
    i64 mean, i64 padding
) {
    const Windows w = {
        rows, width, down, across, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x
    };
    const i64 p = thread_index();
    if (p >= down * across) return;
    const Divided at = divided(p, across);
    const Span ys = pixels(at.whole, kernel_y, stride_y, pad_y, rows);
    const Span xs = pixels(at.rest, kernel_x, stride_x, pad_x, width);
    const calc by = divisor(w, at.whole, at.rest, mean, padding);
    for (i64 image = blockIdx.y; image < images; image += gridDim.y) {
        calc total = 0;
        for (i64 i = ys.begin; i < ys.end; i++)
            for (i64 j = xs.begin; j < xs.end; j++)
                total += (calc)x[(image * rows + i) * width + j];
        y[image * down * across + p] = (real)(total / by);
    }
}

extern "C" __global__ void sums_grad(
    const real* grad, real* out, i64 images, i64 rows, i64 width, i64 down, i64 across,
    i64 kernel_y, i64 kernel_x, i64 stride_y, i64 stride_x, i64 pad_y, i64 pad_x,
    i64 mean, i64 padding
) {
    const Windows w = {
        rows, width, down, across, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x
    };
    const i64 p = thread_index();
    if (p >= rows * width) return;
    const Divided at = divided(p, width);
    const Span ys = windows(at.whole, kernel_y, stride_y, pad_y, down);
    const Span xs = windows(at.rest, kernel_x, stride_x, pad_x, across);
    for (i64 image = blockIdx.y; image < images; image += gridDim.y) {
        calc total = 0;
        for (i64 i = ys.begin; i < ys.end; i++)
            for (i64 j = xs.begin; j < xs.end; j++) {
                const calc g = (calc)grad[(image * down + i) * across + j];
                total += g / divisor(w, i, j, mean, padding);
            }
        out[image * rows * width + p] = (real)total;
    }
}
