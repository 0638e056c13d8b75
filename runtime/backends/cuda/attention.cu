// Attention: what comes between its products, a row of scores for a block, or for a warp where rows
// are short. Every pass has the same elements in the same thread, so results may lie where the
// scores do. The mask's place is given by its steps: along four axes of matrices, of which the last
// three have these lengths, and along rows and columns; 0 where it is repeated. Formulas:
// symgraph/ops/attention.py.

__device__ inline i64 row_of_thread() {
    return blockDim.y == 1 ? blockIdx.x : (i64)blockIdx.x * blockDim.y + threadIdx.y;
}

// The values of a row's threads joined.
template <typename Join>
__device__ inline calc row_join(calc own) {
    return blockDim.y == 1 ? block_join<Join>(own) : warp_join<Join>(own);
}

struct Row {
    i64 seen;  // columns, from the first on
    const calc* mask;
    i64 across;
    calc scale;

    __device__ Row(
        i64 row, const calc* mask, i64 rows, i64 columns, i64 causal, calc scale, i64 first,
        i64 l1, i64 l2, i64 l3, i64 s0, i64 s1, i64 s2, i64 s3, i64 down, i64 across
    ) : across(across), scale(scale) {
        const Divided at = divided(row, rows), last = divided(first + at.whole, l3);
        const Divided third = divided(last.whole, l2), second = divided(third.whole, l1);
        seen = causal && at.rest < columns ? at.rest + 1 : columns;
        this->mask = mask + second.whole * s0 + second.rest * s1 + third.rest * s2
            + last.rest * s3 + at.rest * down;
    }

    __device__ calc score(const calc* scores, i64 j) const {
        return scores[j] * scale + mask[j * across];
    }
};

// Scores (count, columns) become weights, and each row's sum of exponentials a logarithm.
extern "C" __global__ void attention_rows(
    calc* scores, real* weights, const calc* mask, calc* sums, i64 count, i64 rows, i64 columns,
    i64 causal, calc scale, i64 first, i64 l1, i64 l2, i64 l3, i64 s0, i64 s1, i64 s2, i64 s3,
    i64 down, i64 across
) {
    const i64 n = row_of_thread();
    if (n >= count) return;
    const Row at(
        n, mask, rows, columns, causal, scale, first, l1, l2, l3, s0, s1, s2, s3, down, across
    );
    const calc* row = scores + n * columns;
    calc top = at.score(row, 0);
    for (i64 j = threadIdx.x; j < at.seen; j += blockDim.x)
        top = Greater::of(top, at.score(row, j));
    top = row_join<Greater>(top);
    calc total = 0;
    for (i64 j = threadIdx.x; j < at.seen; j += blockDim.x) total += exp(at.score(row, j) - top);
    total = row_join<Plus>(total);
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x)
        weights[n * columns + j] = (real)(j < at.seen ? exp(at.score(row, j) - top) / total : 0);
    if (threadIdx.x == 0) sums[n] = top + log(total);
}

// Scores become weights again, and the weights' gradients those of the products of queries and keys.
extern "C" __global__ void attention_grad_rows(
    const calc* scores, real* weights, const calc* grads, real* slopes, const calc* mask,
    const calc* sums, const real* grad, const real* y, i64 units, i64 count, i64 rows, i64 columns,
    i64 causal, calc scale, i64 first, i64 l1, i64 l2, i64 l3, i64 s0, i64 s1, i64 s2, i64 s3,
    i64 down, i64 across
) {
    const i64 n = row_of_thread();
    if (n >= count) return;
    const Row at(
        n, mask, rows, columns, causal, scale, first, l1, l2, l3, s0, s1, s2, s3, down, across
    );
    calc shared = 0;
    for (i64 j = threadIdx.x; j < units; j += blockDim.x)
        shared += (calc)grad[n * units + j] * (calc)y[n * units + j];
    shared = row_join<Plus>(shared);
    for (i64 j = threadIdx.x; j < columns; j += blockDim.x) {
        const i64 place = n * columns + j;
        calc weight = 0, slope = 0;
        if (j < at.seen) {
            weight = exp(at.score(scores + n * columns, j) - sums[n]);
            slope = weight * (grads[place] - shared) * scale;
        }
        weights[place] = (real)weight;
        slopes[place] = (real)slope;
    }
}
