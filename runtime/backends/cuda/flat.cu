// Functions that formulas call and C does not have. The kernels are appended to this.

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

__device__ inline calc clip(calc x, calc least, calc most) {
    return minimum(maximum(x, least), most);
}

__device__ inline calc square(calc x) {
    return x * x;
}

__device__ inline calc reciprocal(calc x) {
    return 1 / x;
}

__device__ inline calc softrelu(calc x) {  // log(1 + exp(x))
    return maximum(x, 0) + log1p(exp(-fabs(x)));
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
