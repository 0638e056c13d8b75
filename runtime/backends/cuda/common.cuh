// The beginning of every kernel source. `real` is the arrays' element type: float, double, __half or
// __nv_bfloat16, the last two with the header that they are from; `number` is the type of ids and
// labels. These come as -D options. `calc` is what is computed with: float for 16 bits, which are
// rounded when they are stored. Sums have one order, which depends on sizes alone: no atomics.
#ifdef header
#include header
#endif

typedef int i32;
typedef long long i64;

template <typename T> struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };
typedef Wide<real>::type calc;

// Neighbours that a thread loads and stores at once, where all arrays allow it: a warp's loads of
// 16 bits each are too small to keep the memory busy.
const int PACK = 4;
template <typename T> struct alignas(PACK * sizeof(T)) Pack {
    T at[PACK];
};

// The pack of a row of `columns` elements that begins at element j; it is loaded at once if `aligned`,
// which is if all rows are whole packs. What is beyond the row is not read.
template <typename T>
__device__ inline Pack<calc> pack_of(const T* row, i64 j, i64 columns, i64 aligned) {
    Pack<calc> made;
    if (aligned) {
        const Pack<T> own = *(const Pack<T>*)(row + j);
        for (int e = 0; e < PACK; e++) made.at[e] = (calc)own.at[e];
    } else {
        for (int e = 0; e < PACK; e++) made.at[e] = j + e < columns ? (calc)row[j + e] : (calc)0;
    }
    return made;
}

template <typename T>
__device__ inline void put_pack(T* row, i64 j, i64 columns, i64 aligned, const Pack<calc>& own) {
    if (aligned) {
        Pack<T> made;
        for (int e = 0; e < PACK; e++) made.at[e] = (T)own.at[e];
        *(Pack<T>*)(row + j) = made;
    } else {
        for (int e = 0; e < PACK; e++)
            if (j + e < columns) row[j + e] = (T)own.at[e];
    }
}

__device__ inline i64 thread_index() {
    return (i64)blockIdx.x * blockDim.x + threadIdx.x;
}

// a / b and a % b of what is not negative: of 32 bits where that will do, which takes a fraction of
// the time that 64 bits take.
struct Divided {
    i64 whole, rest;
};

__device__ inline Divided divided(i64 a, i64 b) {
    if (((a | b) >> 32) == 0) {
        const unsigned whole = (unsigned)a / (unsigned)b;
        return {whole, (unsigned)a - whole * (unsigned)b};
    }
    const i64 whole = a / b;
    return {whole, a - whole * b};
}

__device__ inline calc sigmoid(calc x) {
    const calc small = exp(-fabs(x));  // never overflows
    return (x < 0 ? small : (calc)1) / (1 + small);
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

// The values of a warp's threads joined, the same in every thread.
template <typename Join, typename T>
__device__ T warp_join(T own) {
    for (int step = 16; step > 0; step /= 2)
        own = Join::of(own, __shfl_xor_sync(0xffffffffu, own, step));
    return own;
}

// All threads' values joined, the same in every thread. Blocks are of whole warps.
template <typename Join, typename T>
__device__ T block_join(T own) {
    __shared__ T parts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    own = warp_join<Join>(own);
    if (lane == 0) parts[warp] = own;
    __syncthreads();
    own = warp_join<Join>(lane < warps ? parts[lane] : Join::idle(parts[0]));
    __syncthreads();  // parts may be written again
    return own;
}
