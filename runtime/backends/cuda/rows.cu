// Look-ups of rows by id, and their gradient: rows added up by id, each sum in the order of the
// batch (the bits of the CPU's sums). That order comes from counting: each id is compared
// with all others, little work for the tens of thousands of ids of a batch.

// The row of an id: clipped, or `count` if it is not there. An id that is none of the `classes` is
// left in `wrong` (see rank_memory.py).
__device__ i64 row_of(
    number id, i64 begin, i64 classes, i64 count, i64 clip, double* wrong, bool* known
) {
    const double value = (double)id;
    *known = true;
    if (clip) return value < 0 ? 0 : value < (double)count ? (i64)id : count - 1;
    if (!(value >= 0 && value < (double)classes)) {
        *wrong = value;
        *known = false;
        return count;
    }
    const i64 row = (i64)id - begin;
    return row >= 0 && row < count ? row : count;
}

extern "C" __global__ void gather(
    const number* ids, const real* weight, real* out, double* wrong,
    i64 rows, i64 columns, i64 begin, i64 classes, i64 count, i64 clip
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 i = blockIdx.y; i < rows; i += gridDim.y) {
        bool known;
        const i64 row = row_of(ids[i], begin, classes, count, clip, wrong, &known);
        real found = row < count ? weight[row * columns + j] : (real)0.0f;
        if (!known) found = (real)(calc)nan("");
        out[i * columns + j] = found;
    }
}

__device__ inline i32 total_of_lanes(i32 own) {  // of 16 threads
    for (int step = 8; step > 0; step /= 2) own += __shfl_xor_sync(0xffffffffu, own, step);
    return own;
}

// order (rows): the numbers of the ids, sorted by row and then by number. repeats, target (rows):
// where a row's first id stands in that order, how many it has and the row; else repeats is 0.
// A block of (16, 16) threads counts for 64 ids: 16 threads for each four of them.
extern "C" __global__ void sort_ids(
    const number* ids, i32* order, i32* repeats, i32* target, double* wrong,
    i64 rows, i64 begin, i64 classes, i64 count, i64 clip
) {
    const int FEW = 4;
    __shared__ i32 tile[256];
    const int lane = threadIdx.x, place = threadIdx.y * 16 + lane;
    const i32 first = ((i32)blockIdx.x * 16 + (i32)threadIdx.y) * FEW;
    bool known;
    i32 own[FEW], before[FEW] = {}, earlier[FEW] = {}, same[FEW] = {};
    for (int e = 0; e < FEW; e++)
        own[e] = first + e < rows
            ? (i32)row_of(ids[first + e], begin, classes, count, clip, wrong, &known) : 0;
    for (i32 start = 0; start < (i32)rows; start += 256) {
        const i32 k = start + place;
        tile[place] = k < (i32)rows
            ? (i32)row_of(ids[k], begin, classes, count, clip, wrong, &known) : (i32)count + 1;
        __syncthreads();
        for (int at = lane; at < 256; at += 16) {
            const i32 other = tile[at];
            for (int e = 0; e < FEW; e++) {
                before[e] += other < own[e];
                same[e] += other == own[e];
                earlier[e] += other == own[e] && start + at < first + e;
            }
        }
        __syncthreads();
    }
    for (int e = 0; e < FEW; e++) {
        const i32 less = total_of_lanes(before[e]), ahead = total_of_lanes(earlier[e]);
        const i32 alike = total_of_lanes(same[e]), at = less + ahead;
        if (first + e >= rows || lane) continue;
        order[at] = first + e;
        repeats[at] = ahead == 0 && own[e] < count ? alike : 0;
        target[at] = own[e];
    }
}

// To the rows of out that have ids, the sums of theirs; the other rows keep what they are.
extern "C" __global__ void sum_by_id(
    const real* given, const i32* order, const i32* repeats, const i32* target, real* out,
    i64 rows, i64 columns
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 first = blockIdx.y; first < rows; first += gridDim.y) {
        const i64 count = repeats[first];
        if (count == 0) continue;
        calc total = 0;
        for (i64 k = 0; k < count; k++) total += (calc)given[order[first + k] * columns + j];
        out[target[first] * columns + j] = (real)total;
    }
}
