/* Vectors of the width that the machine has for which a file is compiled, and a tile of sums that fits its registers.
   Plain C with vector extensions of GCC and Clang. */

#pragma once

#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#define LANES 16
#define ROWS 6 /* 24 sums, 4 weights and an input in 32 registers */
#elif defined(__AVX__)
#include <immintrin.h>
#define LANES 8
#define ROWS 3 /* 12 sums, a weight and 3 inputs in 16 registers */
#elif defined(__aarch64__)
#define LANES 4
#define ROWS 6
#else
#define LANES 4
#define ROWS 3
#endif

#define VECTORS 4
#define PANEL (VECTORS * LANES)
#define DEPTH 512 /* rows of a panel that stay in the cache while all rows of the input pass */
#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int ivec __attribute__((vector_size(4 * LANES)));
typedef float anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE long least(long a, long b) { return a < b ? a : b; }

INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec load(const float *from, long width) {
    vec x = {0};
    if (width >= LANES) return *(const anywhere *)from;
    memcpy(&x, from, width * sizeof(float));
    return x;
}

INLINE void store(float *to, vec x, long width) {
    if (width >= LANES) *(anywhere *)to = x;
    else memcpy(to, &x, width * sizeof(float));
}

/* NaN stays NaN. */
INLINE vec clip(vec x, float limit) {
    vec high = splat(limit), low = splat(-limit);
#if LANES == 16
    return _mm512_max_ps(low, _mm512_min_ps(high, x));
#elif LANES == 8
    return _mm256_max_ps(low, _mm256_min_ps(high, x));
#else
    ivec above = x > high, below = x < low;
    return (vec)(((ivec)x & ~(above | below)) | ((ivec)high & above) | ((ivec)low & below));
#endif
}

/* x, and nothing where y stands at the limits it was clipped to. */
INLINE vec unclipped(vec x, vec y, float limit) {
    return (vec)((ivec)x & ~((y >= splat(limit)) | (y <= splat(-limit))));
}

/* e^(-scale x), with scale x held within the limit: 2^y = 2^n 2^f with n the nearest integer and a polynomial for 2^f. */
INLINE vec exponential(vec x, float scale, float limit) {
    const float shift = 12582912.0f + 127.0f; /* 1.5 * 2^23: the low bits of a sum with it are n + 127 */
    const float to_2 = -1.44269504f * scale;
    x = clip(x, limit / scale);
    vec shifted = x * to_2 + shift;
    vec f = x * to_2 - (shifted - shift);
    vec power = (vec)((ivec)shifted << 23);
    vec p = splat(0.00132647273f);
    p = p * f + 0.00967151299f;
    p = p * f + 0.0555073358f;
    p = p * f + 0.240222424f;
    p = p * f + 0.693147004f;
    p = p * f + 1.0f;
    return p * power;
}

/* 1 / (1 + e^(-scale x)), within 1e-7. */
INLINE vec logistic(vec x, float scale) { return 1.0f / (exponential(x, scale, 80.0f) + 1.0f); }

INLINE vec sigmoid(vec x) { return logistic(x, 1.0f); }

INLINE vec tanh_of(vec x) { return 2.0f * logistic(x, 2.0f) - 1.0f; }
