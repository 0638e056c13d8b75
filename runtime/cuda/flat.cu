// Sums and products element by element. An output may be an input.

extern "C" __global__ void add(const real* x, const real* y, real* out, i64 size) {
    const i64 at = thread_index();
    if (at < size) out[at] = (real)((calc)x[at] + (calc)y[at]);
}

extern "C" __global__ void multiply(const real* x, const real* y, real* out, i64 size) {
    const i64 at = thread_index();
    if (at < size) out[at] = (real)((calc)x[at] * (calc)y[at]);
}

// By one number.
extern "C" __global__ void scale(const real* x, const real* y, real* out, i64 size) {
    const i64 at = thread_index();
    if (at < size) out[at] = (real)((calc)x[at] * (calc)*y);
}
