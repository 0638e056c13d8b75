// Copies of bytes. A row of the table tells each block where to, where from, and how many; see
// tables.py.

extern "C" __global__ void copy_blocks(const i64* table) {
    const i64* row = table + 3 * (i64)blockIdx.x;
    if (((row[0] | row[1] | row[2]) & 15) == 0) {
        struct alignas(16) Piece {
            i64 at[2];
        };
        Piece* to = (Piece*)row[0];
        const Piece* from = (const Piece*)row[1];
        for (i64 j = threadIdx.x; j < row[2] / 16; j += blockDim.x) to[j] = from[j];
    } else {
        char* to = (char*)row[0];
        const char* from = (const char*)row[1];
        for (i64 j = threadIdx.x; j < row[2]; j += blockDim.x) to[j] = from[j];
    }
}
