// __nv_bfloat16: the upper half of a float.
#pragma once
#include "halves.h"

struct __nv_bfloat16 {
    unsigned short bits = 0;
    __nv_bfloat16() = default;
    __nv_bfloat16(float x) {
        const unsigned all = halves::bits_of(x);
        bits = x != x ? all >> 16 | 0x40 : halves::rounded(all, 16);
    }
    explicit operator float() const { return halves::float_of(unsigned(bits) << 16); }
};
