// Numbers in another dtype, from `given` to `real`, one of which has 16 bits and the other 32.

extern "C" __global__ void cast(const given* x, real* y, i64 size) {
    const i64 at = thread_index();
    if (at < size) y[at] = (real)(calc)x[at];
}
