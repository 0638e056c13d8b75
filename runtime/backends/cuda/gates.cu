// LSTM and GRU steps and their gradients, an element of the state a thread. A thread reads all that
// it needs before it writes to the same places, so an output may be an input of its shape.
// An LSTM's states are `calc`: float with gates of 16 bits. Formulas: symgraph/ops/gates.py.

// biases: how many are still to be added: that of h2h, and that of i2h.
extern "C" __global__ void lstm(
    const real* i2h, const real* h2h, const calc* c, const real* h2h_bias, const real* i2h_bias,
    real* output, calc* state, real* gates, i64 rows, i64 size, i64 biases
) {
    const i64 j = thread_index();
    if (j >= size) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * size + j, g = row * 4 * size + j;
        calc pre[4];
        for (int part = 0; part < 4; ++part) {
            real own = i2h[g + part * size], other = h2h[g + part * size];
            if (biases > 0) other = (real)((calc)other + (calc)h2h_bias[j + part * size]);
            if (biases > 1) own = (real)((calc)own + (calc)i2h_bias[j + part * size]);
            pre[part] = (calc)own + (calc)other;
        }
        const calc i = sigmoid(pre[0]), f = sigmoid(pre[1]), fresh = tanh(pre[2]);
        const calc o = sigmoid(pre[3]);
        const calc next = f * c[at] + i * fresh;
        gates[g] = (real)i;
        gates[g + size] = (real)f;
        gates[g + 2 * size] = (real)fresh;
        gates[g + 3 * size] = (real)o;
        state[at] = next;
        output[at] = (real)(o * tanh(next));
    }
}

// dh and dc are not read if they are not there; with more_dh, dh is the sum of both.
extern "C" __global__ void lstm_grad(
    const real* dh, const real* more_dh, const calc* dc, const real* gates, const calc* c, const calc* state,
    real* d_pre, calc* d_c, i64 rows, i64 size, i64 has_dh, i64 has_more, i64 has_dc
) {
    const i64 j = thread_index();
    if (j >= size) return;
    for (i64 row = blockIdx.y; row < rows; row += gridDim.y) {
        const i64 at = row * size + j, g = row * 4 * size + j;
        const calc i = (calc)gates[g], f = (calc)gates[g + size];
        const calc fresh = (calc)gates[g + 2 * size], o = (calc)gates[g + 3 * size], old = c[at];
        calc whole = has_dc ? dc[at] : (calc)0, d_o = 0;
        if (has_dh) {
            const real sum = has_more ? (real)((calc)dh[at] + (calc)more_dh[at]) : dh[at];
            const calc t = tanh(state[at]), part = (calc)sum * o;
            whole += part * (1 - t * t);
            d_o = part * t * (1 - o);
        }
        d_pre[g] = (real)(whole * fresh * i * (1 - i));
        d_pre[g + size] = (real)(whole * old * f * (1 - f));
        d_pre[g + 2 * size] = (real)(whole * i * (1 - fresh * fresh));
        d_pre[g + 3 * size] = (real)d_o;
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
        const calc r = sigmoid((calc)i2h[g] + (calc)h2h[g]);
        const calc z = sigmoid((calc)i2h[g + size] + (calc)h2h[g + size]);
        const calc own = (calc)h2h[g + 2 * size];
        const calc fresh = tanh((calc)i2h[g + 2 * size] + r * own);
        const calc next = (1 - z) * fresh + z * (calc)h[at];
        gates[g] = (real)r;
        gates[g + size] = (real)z;
        gates[g + 2 * size] = (real)fresh;
        inner[at] = (real)own;
        output[at] = (real)next;
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
        const calc r = (calc)gates[g], z = (calc)gates[g + size];
        const calc fresh = (calc)gates[g + 2 * size], d = (calc)dh[at];
        const calc d_new = d * (1 - z) * (1 - fresh * fresh);
        const calc d_r = d_new * (calc)inner[at] * r * (1 - r);
        const calc d_z = d * ((calc)h[at] - fresh) * z * (1 - z);
        d_i2h[g] = d_h2h[g] = (real)d_r;
        d_i2h[g + size] = d_h2h[g + size] = (real)d_z;
        d_i2h[g + 2 * size] = (real)d_new;
        d_h2h[g + 2 * size] = (real)(d_new * r);
        d_h[at] = (real)(d * z);
    }
}
