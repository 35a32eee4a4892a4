/* The convolutions of a word's characters, and the maximum over its windows, in float32.

       y[f] = max_t sum_k T[k][id[t + k]][f]          T[k][id] = embedding[id] W[k], a table made once for all words

   A character has one of few embeddings, so its product with each column of a filter is looked up instead of computed:
   a window costs as many additions as the filter is wide. Windows wholly in the padding are all alike: one is enough.
   Every sum runs over k upwards, so a word's numbers do not depend on the words around it. */

#include <float.h>

#include "simd.h"

typedef int ianywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* How many windows of this width a word has that are not alike: `end` marks its end, padding follows. */
static long windows_of(const long *ids, long columns, long width, long end) {
    long length = 0, most = columns - width + 1;
    while (length < columns && ids[length] != end) length++;
    return length + 2 < most ? length + 2 : most;
}

/* The maxima of some vectors of filters, for one word of `count` windows. */
INLINE void maxima(int vectors, const long *id, long count, long width, long characters, long filters,
                   const float *table, float *y, int *window) {
    vec best[VECTORS];
    ivec place[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) best[v] = (vec){0} - FLT_MAX, place[v] = (ivec){0};
    for (long t = 0; t < count; t++) {
        vec sum[VECTORS] = {0};
        for (long k = 0; k < width; k++) {
            const float *row = table + (k * characters + id[t + k]) * filters;
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) sum[v] += *(const anywhere *)(row + v * LANES);
        }
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            ivec better = sum[v] > best[v];
            best[v] = (vec)(((ivec)best[v] & ~better) | ((ivec)sum[v] & better));
            if (window) place[v] = (place[v] & ~better) | (((int)t + (ivec){0}) & better);
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
        *(anywhere *)(y + v * LANES) = best[v];
        if (window) *(ianywhere *)(window + v * LANES) = place[v];
    }
}

/* ids (n, columns) from 0 on, table (width, characters, filters), filters a multiple of LANES ->
   y (n, filters) and, unless it is null, the window of each maximum, the first of equal ones; rows are `stride` apart.
   All words pass by some filters before the next ones, whose part of the table then stays in the cache. */
EXPORT void relmo_windows_forward(long n, long columns, const long *ids, long end, long width, long characters,
                                  long filters, const float *table, float *y, int *window, long stride) {
    for (long f = 0; f < filters; f += VECTORS * LANES)
        for (long word = 0; word < n; word++) {
            const long *id = ids + word * columns;
            long count = windows_of(id, columns, width, end), at = word * stride + f;
            int *place = window ? window + at : 0;
            if (f + VECTORS * LANES <= filters && window)
                maxima(VECTORS, id, count, width, characters, filters, table + f, y + at, place);
            else if (f + VECTORS * LANES <= filters)
                maxima(VECTORS, id, count, width, characters, filters, table + f, y + at, 0);
            else
                for (long v = 0; f + v < filters; v += LANES)
                    maxima(1, id, count, width, characters, filters, table + f + v, y + at + v, place ? place + v : 0);
        }
}

/* dy (n, filters), rows `stride` apart, is added to the rows of d_table that its maximum was the sum of. */
EXPORT void relmo_windows_backward(long n, long columns, const long *ids, long width, long characters, long filters,
                                   const float *dy, const int *window, long stride, float *d_table) {
    for (long word = 0; word < n; word++)
        for (long k = 0; k < width; k++)
            for (long f = 0; f < filters; f++) {
                long id = ids[word * columns + window[word * stride + f] + k];
                d_table[(k * characters + id) * filters + f] += dy[word * stride + f];
            }
}
