// Kernels beside convolution's products: the columns that windows read of one image, the image
// that columns add up to, and biases of channels. Formulas: symgraph/ops/conv_compute.py.

// columns (channels * kernel, windows) of image (channels, rows, columns of pixels): zeros outside.
extern "C" __global__ void columns_of(
    const real* image, real* columns, i64 depth, i64 rows, i64 width, i64 down, i64 across,
    i64 kernel_y, i64 kernel_x, i64 stride_y, i64 stride_x, i64 dilate_y, i64 dilate_x,
    i64 pad_y, i64 pad_x
) {
    const i64 p = thread_index();
    if (p >= down * across) return;
    const Divided window = divided(p, across);
    const i64 top = window.whole * stride_y - pad_y, left = window.rest * stride_x - pad_x;
    for (i64 d = blockIdx.y; d < depth; d += gridDim.y) {
        const Divided line = divided(d, kernel_x), own = divided(line.whole, kernel_y);
        const i64 channel = own.whole;
        const i64 y = top + own.rest * dilate_y, x = left + line.rest * dilate_x;
        const bool inside = y >= 0 && y < rows && x >= 0 && x < width;
        columns[d * down * across + p] =
            inside ? image[(channel * rows + y) * width + x] : (real)0.0f;
    }
}

// The reverse: each pixel is the sum of what was read of it, in the order of the kernel.
extern "C" __global__ void image_of(
    const real* columns, real* image, i64 channels, i64 rows, i64 width, i64 down, i64 across,
    i64 kernel_y, i64 kernel_x, i64 stride_y, i64 stride_x, i64 dilate_y, i64 dilate_x,
    i64 pad_y, i64 pad_x
) {
    const i64 pixel = thread_index();
    if (pixel >= rows * width) return;
    const Divided place = divided(pixel, width);
    const i64 y = place.whole + pad_y, x = place.rest + pad_x;
    for (i64 channel = blockIdx.y; channel < channels; channel += gridDim.y) {
        calc total = 0;
        for (i64 i = 0; i < kernel_y; i++) {
            const i64 top = y - i * dilate_y;
            const Divided by_y = divided(top < 0 ? 0 : top, stride_y);
            if (top < 0 || by_y.rest || by_y.whole >= down) continue;
            for (i64 j = 0; j < kernel_x; j++) {
                const i64 left = x - j * dilate_x;
                const Divided by_x = divided(left < 0 ? 0 : left, stride_x);
                if (left < 0 || by_x.rest || by_x.whole >= across) continue;
                const i64 d = (channel * kernel_y + i) * kernel_x + j;
                total += (calc)columns[(d * down + by_y.whole) * across + by_x.whole];
            }
        }
        image[channel * rows * width + pixel] = (real)total;
    }
}

// y (images * channels, size) += bias of the channel.
extern "C" __global__ void add_bias(real* y, const real* bias, i64 rows, i64 size, i64 channels) {
    const i64 j = thread_index();
    if (j >= size) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y)
        y[row * size + j] = (real)((calc)y[row * size + j] + (calc)bias[divided(row, channels).rest]);
}
