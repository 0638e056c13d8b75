// __half: 5 bits of exponent and 10 of mantissa; below 2^-14 the distance is 2^-24.
#pragma once
#include "halves.h"

struct __half {
    unsigned short bits = 0;
    __half() = default;
    __half(float x) {
        const unsigned all = halves::bits_of(x), sign = all >> 16 & 0x8000, size = all & 0x7fffffff;
        unsigned found;
        if (x != x)
            found = 0x7e00;
        else if (size >= halves::bits_of(65520.0f))  // no less than what rounds to 2^16
            found = 0x7c00;
        else if (size < halves::bits_of(0x1p-14f))  // a float of 0.5 ulp 2^-24 rounds for us
            found = halves::bits_of(halves::float_of(size) + 0.5f) - halves::bits_of(0.5f);
        else
            found = halves::rounded(size - (112u << 23), 13);
        bits = sign | found;
    }
    explicit operator float() const {
        const unsigned sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
        float x = size * 0x1p-24f;
        if (size >= 0x7c00) x = halves::float_of(0x7f800000u | (size & 0x3ff) << 13);
        else if (size >= 0x400) x = halves::float_of((size << 13) + (112u << 23));
        return halves::float_of(halves::bits_of(x) | sign);
    }
};
