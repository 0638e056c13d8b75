// Floats of 16 bits as CUDA's headers have them, as far as runtime/cuda uses them: rounded to the
// nearest, halves to even, and computed as float.
#pragma once
#include <string.h>

namespace halves {

inline unsigned bits_of(float x) {
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(unsigned bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Drop the low bits of a number, which may carry into the exponent.
inline unsigned rounded(unsigned bits, int drop) {
    const unsigned half = 1u << (drop - 1), odd = bits >> drop & 1;
    return (bits + half - 1 + odd) >> drop;
}

}  // namespace halves
