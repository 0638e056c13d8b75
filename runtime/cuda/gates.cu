// LSTM and GRU steps and their gradients, an element of the state a thread. A thread reads all that
// it needs before it writes to the same places, so an output may be an input of its shape.
// Formulas: symgraph/ops/gates.py.

extern "C" __global__ void lstm(
    const real* i2h, const real* h2h, const real* c, real* output, real* state, real* gates,
    i64 rows, i64 size
) {
    const i64 j = thread_index();
    if (j >= size) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * size + j, g = row * 4 * size + j;
        const real i = sigmoid(i2h[g] + h2h[g]);
        const real f = sigmoid(i2h[g + size] + h2h[g + size]);
        const real fresh = tanh(i2h[g + 2 * size] + h2h[g + 2 * size]);
        const real o = sigmoid(i2h[g + 3 * size] + h2h[g + 3 * size]);
        const real next = f * c[at] + i * fresh;
        gates[g] = i;
        gates[g + size] = f;
        gates[g + 2 * size] = fresh;
        gates[g + 3 * size] = o;
        state[at] = next;
        output[at] = o * tanh(next);
    }
}

// dh and dc are not read if they are not there.
extern "C" __global__ void lstm_grad(
    const real* dh, const real* dc, const real* gates, const real* c, const real* state,
    real* d_pre, real* d_c, i64 rows, i64 size, i64 has_dh, i64 has_dc
) {
    const i64 j = thread_index();
    if (j >= size) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * size + j, g = row * 4 * size + j;
        const real i = gates[g], f = gates[g + size], fresh = gates[g + 2 * size];
        const real o = gates[g + 3 * size], old = c[at];
        real whole = has_dc ? dc[at] : (real)0, d_o = 0;
        if (has_dh) {
            const real t = tanh(state[at]), part = dh[at] * o;
            whole += part * (1 - t * t);
            d_o = part * t * (1 - o);
        }
        d_pre[g] = whole * fresh * i * (1 - i);
        d_pre[g + size] = whole * old * f * (1 - f);
        d_pre[g + 2 * size] = whole * i * (1 - fresh * fresh);
        d_pre[g + 3 * size] = d_o;
        d_c[at] = whole * f;
    }
}

extern "C" __global__ void gru(
    const real* i2h, const real* h2h, const real* h, real* output, real* gates, real* inner,
    i64 rows, i64 size
) {
    const i64 j = thread_index();
    if (j >= size) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * size + j, g = row * 3 * size + j;
        const real r = sigmoid(i2h[g] + h2h[g]), z = sigmoid(i2h[g + size] + h2h[g + size]);
        const real own = h2h[g + 2 * size], fresh = tanh(i2h[g + 2 * size] + r * own);
        const real next = (1 - z) * fresh + z * h[at];
        gates[g] = r;
        gates[g + size] = z;
        gates[g + 2 * size] = fresh;
        inner[at] = own;
        output[at] = next;
    }
}

extern "C" __global__ void gru_grad(
    const real* dh, const real* gates, const real* inner, const real* h,
    real* d_i2h, real* d_h2h, real* d_h, i64 rows, i64 size
) {
    const i64 j = thread_index();
    if (j >= size) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * size + j, g = row * 3 * size + j;
        const real r = gates[g], z = gates[g + size], fresh = gates[g + 2 * size], d = dh[at];
        const real d_new = d * (1 - z) * (1 - fresh * fresh);
        const real d_r = d_new * inner[at] * r * (1 - r), d_z = d * (h[at] - fresh) * z * (1 - z);
        d_i2h[g] = d_h2h[g] = d_r;
        d_i2h[g + size] = d_h2h[g + size] = d_z;
        d_i2h[g + 2 * size] = d_new;
        d_h2h[g + 2 * size] = d_new * r;
        d_h[at] = d * z;
    }
}
