/* The product that all others here are made of: a tile of sums, held in registers. */

#pragma once

#include "simd.h"

/* tile (rows, 4 vectors) += a (rows, depth) b (depth, vectors). */
INLINE void multiply(int rows, int vectors, long depth, const float *a, long stride, const float *b, float *tile) {
    vec sum[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sum[r][v] = *(const anywhere *)(tile + (r * VECTORS + v) * LANES);
    for (long k = 0; k < depth; k++) {
        vec x[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) x[r] = splat(a[r * stride + k]);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            vec weight = *(const anywhere *)(b + (k * vectors + v) * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) sum[r][v] += x[r] * weight;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) *(anywhere *)(tile + (r * VECTORS + v) * LANES) = sum[r][v];
}

#define FORM(rows, vectors)                                                                                            \
    static void multiply_##rows##_##vectors(long depth, const float *a, long stride, const float *b, float *tile) {    \
        multiply(rows, vectors, depth, a, stride, b, tile);                                                            \
    }
#define FORMS(rows) FORM(rows, 1) FORM(rows, 2) FORM(rows, 3) FORM(rows, 4)
#define NAMES(rows) {multiply_##rows##_1, multiply_##rows##_2, multiply_##rows##_3, multiply_##rows##_4}

FORMS(1) FORMS(2) FORMS(3)
#if ROWS == 6
FORMS(4) FORMS(5) FORMS(6)
#endif

static void (*const MULTIPLY[ROWS][VECTORS])(long, const float *, long, const float *, float *) = {
    NAMES(1), NAMES(2), NAMES(3),
#if ROWS == 6
    NAMES(4), NAMES(5), NAMES(6),
#endif
};
