// What the formulas of formulas.py call. Their kernels are written behind this.

__device__ inline calc maximum(calc x, calc y) {  // NaN if one is
    return x >= y || x != x ? x : y;
}

__device__ inline calc minimum(calc x, calc y) {
    return x <= y || x != x ? x : y;
}

__device__ inline calc sign(calc x) {
    return x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x;
}

__device__ inline calc modulo(calc x, calc y) {  // with the sign of y
    const calc rest = fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

__device__ inline calc elu(calc x, calc slope) {
    return x > 0 ? x : slope * expm1(x);
}

// Four axes of an output and, of its inputs, the steps along them: 0 along one that is repeated.
// Rows are along the first three.
struct Row {
    unsigned first, second, third;
    __device__ Row(unsigned row, unsigned seconds, unsigned thirds) {
        const unsigned above = row / thirds;
        first = above / seconds, second = above % seconds, third = row % thirds;
    }
    __device__ i64 start(i64 by_first, i64 by_second, i64 by_third) const {
        return first * by_first + second * by_second + third * by_third;
    }
};
