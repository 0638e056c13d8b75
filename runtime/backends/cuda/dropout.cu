// Dropout: numbers that are a function of a key and a counter, as symgraph/core/rand.py draws them. The key
// and the first sample's place in the batch are read from memory, since a CUDA graph has its
// arguments for good.

typedef unsigned long long u64;

// The array is (outer, samples, inner). first: samples of the micro-batch before these, or -1 where
// there is no batch. least: of 2^24, below which a number drops its element.
extern "C" __global__ void drop(
    const real* x, const i64* key, const i64* sample, real* out, real* mask,
    i64 size, i64 outer, i64 samples, i64 inner, i64 first, i64 least, double scale
) {
    const i64 at = thread_index();
    if (at >= size) return;
    const Divided by_row = divided(at, inner), by_sample = divided(by_row.whole, samples);
    const i64 in_batch = first < 0 ? 0 : sample[0] + first;
    const i64 counter = (in_batch + by_sample.rest) * (outer * inner) + by_sample.whole * inner
        + by_row.rest;
    u64 z = ((u64)counter + 1) * 0x9E3779B97F4A7C15ull + (u64)key[0];
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    const calc kept = (i64)(z >> 40) >= least ? (calc)scale : (calc)0;
    mask[at] = (real)kept;
    out[at] = (real)((calc)x[at] * kept);
}
