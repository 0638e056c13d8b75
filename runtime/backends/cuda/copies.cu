// Many arrays copied in one launch. A row of the table tells each block where its bytes lie, where they go,
// and how many there are; see copies.py.

extern "C" __global__ void copy_pieces(const i64* table) {
    const i64* row = table + 3 * (i64)blockIdx.x;
    const char* from = (const char*)row[0];
    char* to = (char*)row[1];
    const i64 size = sizeof(Pack<i32>), packs = (row[0] | row[1]) % size ? 0 : row[2] / size;
    for (i64 j = threadIdx.x; j < packs; j += blockDim.x)
        ((Pack<i32>*)to)[j] = ((const Pack<i32>*)from)[j];
    for (i64 j = size * packs + threadIdx.x; j < row[2]; j += blockDim.x) to[j] = from[j];
}
