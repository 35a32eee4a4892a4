/* The convolutions of a word's characters, and the maximum over its windows, in float32.

       y[f] = max_t sum_k T[k][id[t + k]][f]          T[k][id] = embedding[id] W[k], a table made once for all words

   A character has one of few embeddings, so its product with each column of a filter is looked up instead of computed:
   a window costs as many additions as the filter is wide. Windows wholly in the padding are all alike: one is enough.
   Every sum runs over k upwards, so a word's numbers do not depend on the words around it. */

#include <float.h>

#define EXPORT __attribute__((visibility("default")))
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int ivec __attribute__((vector_size(4 * LANES)));
typedef float anywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int ianywhere __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* How many windows of this width a word has that are not alike: `end` marks its end, padding follows. */
static long windows_of(const long *ids, long columns, long width, long end) {
    long length = 0, most = columns - width + 1;
    while (length < columns && ids[length] != end) length++;
    return length + 2 < most ? length + 2 : most;
}

/* ids (n, columns) from 0 on, table (width, characters, filters), filters a multiple of LANES ->
   y (n, filters) and the window of each maximum, the first of equal ones; rows are `stride` apart. */
EXPORT void relmo_windows_forward(long n, long columns, const long *ids, long end, long width, long characters,
                                  long filters, const float *table, float *y, int *window, long stride) {
    for (long word = 0; word < n; word++) {
        const long *id = ids + word * columns;
        long count = windows_of(id, columns, width, end);
        for (long f = 0; f < filters; f += LANES) {
            vec best = (vec){0} - FLT_MAX;
            ivec place = {0};
            for (long t = 0; t < count; t++) {
                vec sum = {0};
                for (long k = 0; k < width; k++)
                    sum += *(const anywhere *)(table + (k * characters + id[t + k]) * filters + f);
                ivec better = sum > best;
                best = (vec)(((ivec)best & ~better) | ((ivec)sum & better));
                place = (place & ~better) | (((int)t + (ivec){0}) & better);
            }
            *(anywhere *)(y + word * stride + f) = best;
            *(ianywhere *)(window + word * stride + f) = place;
        }
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
