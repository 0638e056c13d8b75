// Numbers in another dtype, from `given` to `real`, one of which has 16 bits and the other 32.

extern "C" __global__ void cast(const given* x, real* y, i64 size) {
    const i64 at = thread_index();
    if (at < size) y[at] = (real)(calc)x[at];
}

extern "C" __global__ void cast_packs(const given* x, real* y, i64 packs) {
    const i64 at = thread_index();
    if (at >= packs) return;
    const Pack<given> own = ((const Pack<given>*)x)[at];
    Pack<real> made;
    for (int i = 0; i < PACK; i++) made.at[i] = (real)(calc)own.at[i];
    ((Pack<real>*)y)[at] = made;
}
