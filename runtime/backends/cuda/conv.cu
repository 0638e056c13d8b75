// Kernels beside convolution's products: the columns that windows read of some images, the images
// that columns add up to, and outputs by filters or by images. Formulas: symgraph/ops/conv_compute.py.

// The window along an axis that begins at this pixel of the padded image; -1 if none of `count` does.
__device__ inline i64 window_at(i64 pixel, i64 stride, i64 count) {
    if (pixel < 0) return -1;
    if (stride == 1) return pixel < count ? pixel : -1;
    const Divided by = divided(pixel, stride);
    return by.rest || by.whole >= count ? -1 : by.whole;
}

// columns (channels * kernel, images * windows) of images (count, channels, rows, width): zeros
// outside. A thread has one window of each of its channels.
extern "C" __global__ void columns_of(
    const real* __restrict__ images, real* __restrict__ columns, i64 count, i64 channels, i64 rows,
    i64 width, i64 down, i64 across, i64 kernel_y, i64 kernel_x, i64 stride_y, i64 stride_x,
    i64 dilate_y, i64 dilate_x, i64 pad_y, i64 pad_x
) {
    const i64 p = thread_index(), line = count * down * across;
    if (p >= line) return;
    const Divided image = divided(p, down * across), window = divided(image.rest, across);
    const i64 top = window.whole * stride_y - pad_y, left = window.rest * stride_x - pad_x;
    for (i64 channel = blockIdx.y; channel < channels; channel += gridDim.y) {
        const real* plane = images + (image.whole * channels + channel) * rows * width;
        real* to = columns + channel * kernel_y * kernel_x * line + p;
        for (i64 i = 0; i < kernel_y; i++) {
            const i64 y = top + i * dilate_y;
            for (i64 j = 0; j < kernel_x; j++, to += line) {
                const i64 x = left + j * dilate_x;
                const bool inside = y >= 0 && y < rows && x >= 0 && x < width;
                *to = inside ? plane[y * width + x] : (real)0.0f;
            }
        }
    }
}

// The reverse: each pixel is the sum of what was read of it, in the order of the kernel, plus a bias
// for each channel.
extern "C" __global__ void images_of(
    const real* __restrict__ columns, real* __restrict__ images, const real* __restrict__ bias,
    i64 biased, i64 count, i64 channels, i64 rows, i64 width, i64 down, i64 across, i64 kernel_y,
    i64 kernel_x, i64 stride_y, i64 stride_x, i64 dilate_y, i64 dilate_x, i64 pad_y, i64 pad_x
) {
    const i64 p = thread_index(), pixels = rows * width, line = count * down * across;
    if (p >= count * pixels) return;
    const Divided image = divided(p, pixels), place = divided(image.rest, width);
    const i64 y = place.whole + pad_y, x = place.rest + pad_x;
    for (i64 channel = blockIdx.y; channel < channels; channel += gridDim.y) {
        const real* from = columns + channel * kernel_y * kernel_x * line;
        calc total = 0;
        for (i64 i = 0; i < kernel_y; i++) {
            const i64 by_y = window_at(y - i * dilate_y, stride_y, down);
            if (by_y < 0) continue;
            const real* own = from + i * kernel_x * line + (image.whole * down + by_y) * across;
            for (i64 j = 0; j < kernel_x; j++) {
                const i64 by_x = window_at(x - j * dilate_x, stride_x, across);
                if (by_x >= 0) total += (calc)own[j * line + by_x];
            }
        }
        if (biased) total += (calc)bias[channel];
        images[(image.whole * channels + channel) * pixels + image.rest] = (real)total;
    }
}

// turned (filters, images * windows) = y (images, filters, windows)
extern "C" __global__ void by_filter(
    const real* __restrict__ y, real* __restrict__ turned, i64 images, i64 filters, i64 windows
) {
    const i64 p = thread_index(), line = images * windows;
    if (p >= line) return;
    const Divided image = divided(p, windows);
    for (i64 filter = blockIdx.y; filter < filters; filter += gridDim.y)
        turned[filter * line + p] = y[(image.whole * filters + filter) * windows + image.rest];
}

// y (images, filters, windows) = turned (filters, images * windows), plus a bias for each filter
extern "C" __global__ void by_image(
    const real* __restrict__ turned, real* __restrict__ y, const real* __restrict__ bias, i64 biased,
    i64 images, i64 filters, i64 windows
) {
    const i64 p = thread_index(), line = images * windows;
    if (p >= line) return;
    const Divided image = divided(p, windows);
    for (i64 filter = blockIdx.y; filter < filters; filter += gridDim.y) {
        const calc added = biased ? (calc)bias[filter] : (calc)0;
        const calc own = (calc)turned[filter * line + p] + added;
        y[(image.whole * filters + filter) * windows + image.rest] = (real)own;
    }
}
