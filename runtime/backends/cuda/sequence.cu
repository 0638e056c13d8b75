// Sequences of different lengths in data that are (steps, batch, inner), or (batch, steps, inner): a
// row is one step of one sample. A length that there cannot be is left in `wrong` (see rank_memory.py) and
// makes NaN. Formulas: symgraph/ops/sequence.py.

struct Step {
    i64 time, sample;
};

// Of a row of data whose second axis has so many elements.
__device__ Step step_of(i64 row, i64 seconds, i64 time_first) {
    const Divided by = divided(row, seconds);
    return time_first ? Step{by.whole, by.rest} : Step{by.rest, by.whole};
}

__device__ i64 row_of(Step at, i64 seconds, i64 time_first) {
    return time_first ? at.time * seconds + at.sample : at.sample * seconds + at.time;
}

// The length without `first`, or -1 if it is none of first..steps, and so that is noted.
__device__ i64 length_from(number length, i64 first, i64 steps, double* wrong) {
    const double value = (double)length;
    if (value >= (double)first && value <= (double)steps) return (i64)length - first;
    *wrong = value - (double)first;
    return -1;
}

extern "C" __global__ void mask_steps(
    const real* x, const number* lengths, real* out, i64 rows, i64 columns, i64 seconds,
    i64 time_first, double value
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const Step own = step_of(row, seconds, time_first);
        const bool inside = (double)own.time < (double)lengths[own.sample];
        out[row * columns + j] = inside ? x[row * columns + j] : (real)(calc)value;
    }
}

extern "C" __global__ void reverse_steps(
    const real* x, const number* lengths, real* out, double* wrong, i64 rows, i64 columns,
    i64 seconds, i64 time_first, i64 steps
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        Step own = step_of(row, seconds, time_first);
        const i64 length = length_from(lengths[own.sample], 0, steps, wrong);
        if (own.time < length) own.time = length - 1 - own.time;
        const real found = x[row_of(own, seconds, time_first) * columns + j];
        out[row * columns + j] = length < 0 ? (real)(calc)nan("") : found;
    }
}

// A row of the output is a sample.
extern "C" __global__ void last_steps(
    const real* x, const number* lengths, real* out, double* wrong, i64 rows, i64 columns,
    i64 seconds, i64 time_first, i64 steps
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 end = length_from(lengths[row], 1, steps, wrong);
        const Step last = {end < 0 ? 0 : end, row};
        const real found = x[row_of(last, seconds, time_first) * columns + j];
        out[row * columns + j] = end < 0 ? (real)(calc)nan("") : found;
    }
}

extern "C" __global__ void last_steps_grad(
    const real* grad, const number* lengths, real* out, double* wrong, i64 rows, i64 columns,
    i64 seconds, i64 time_first, i64 steps
) {
    const i64 j = thread_index();
    if (j >= columns) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const Step own = step_of(row, seconds, time_first);
        const i64 end = length_from(lengths[own.sample], 1, steps, wrong);
        real found = own.time == end ? grad[own.sample * columns + j] : (real)0.0f;
        if (end < 0) found = (real)(calc)nan("");
        out[row * columns + j] = found;
    }
}
