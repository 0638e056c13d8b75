// What every source of kernels begins with. `real` is float or double, `number` the type of ids and
// labels; both come as -D options. Sums have one order, which hangs on sizes alone: no atomics.

typedef int i32;
typedef long long i64;

__device__ inline i64 thread_index() {
    return (i64)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ inline real sigmoid(real x) {
    const real small = exp(-fabs(x));  // never overflows
    return (x < 0 ? small : (real)1) / (1 + small);
}

// -- joins over a block's threads -----------------------------------------------------------------

struct Plus {
    template <typename T> static __device__ T of(T a, T b) { return a + b; }
    template <typename T> static __device__ T idle(T) { return 0; }
};

struct Greater {  // NaN if one is
    template <typename T> static __device__ T of(T a, T b) { return a > b || a != a ? a : b; }
    template <typename T> static __device__ T idle(T any) { return any; }
};

// All threads' values joined, the same in every thread. Blocks are of whole warps.
template <typename Join, typename T>
__device__ T block_join(T own) {
    __shared__ T parts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2)
        own = Join::of(own, __shfl_xor_sync(0xffffffffu, own, step));
    if (lane == 0) parts[warp] = own;
    __syncthreads();
    own = lane < warps ? parts[lane] : Join::idle(parts[0]);
    for (int step = 16; step > 0; step /= 2)
        own = Join::of(own, __shfl_xor_sync(0xffffffffu, own, step));
    __syncthreads();  // parts may be written again
    return own;
}
