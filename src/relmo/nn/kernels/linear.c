/* Products of many rows with one weight, in float32, and a highway layer around one.

       linear     y = x W^T + b
       highway    g = sigmoid(x W_carry^T + b);  y = g relu(x W_transform^T + b') + (1 - g) x

   Choices:
   - Weights are packed once into panels of four vectors of columns. A highway's panel has two vectors of the carry and
     the same two of the transform, so that a tile of sums (ROWS rows x 4 vectors, in registers) is all it takes.
   - Every sum runs over k upwards, one product after the other, whatever the tile: a row's numbers do not depend on
     how many rows there are, where it stands, or which thread computes it. */

#include "tile.h"

#define SHALLOW 256 /* rows of a panel that stay in the cache while the rows of the input pass */
#define TOGETHER 96 /* rows of the input that stay in it while the panels pass */

/* tiles (n, 4 vectors) = bias + x (n, depth) panel. */
static void sums(long n, long depth, const float *x, const float *bias, const float *panel, float *tiles) {
    for (long r = 0; r < n; r++) memcpy(tiles + r * PANEL, bias, PANEL * sizeof(float));
    for (long k = 0; k < depth; k += SHALLOW)
        for (long row = 0; row < n; row += ROWS)
            MULTIPLY[least(ROWS, n - row) - 1][3](least(SHALLOW, depth - k), x + row * depth + k, depth,
                                                  panel + k * PANEL, tiles + row * PANEL);
}

/* How many floats a weight (columns, depth) and its bias have when packed; a highway's two, of as many columns each. */
EXPORT long relmo_linear_packed(long depth, long columns, int highway) {
    long width = highway ? PANEL / 2 : PANEL;
    return (columns + width - 1) / width * (depth + 1) * PANEL;
}

/* Into `packed`, panel after panel: the bias, then for each k the weights. `other` is a highway's transform, or null.
   Columns past the last are zeros. */
EXPORT void relmo_linear_pack(const float *w, const float *bias, const float *other, const float *other_bias, long depth,
                              long columns, float *packed) {
    long width = other ? PANEL / 2 : PANEL;
    for (long j = 0; j < columns; j += width, packed += (depth + 1) * PANEL)
        for (long l = 0; l < PANEL; l++) {
            long column = j + l % width;
            const float *from = l < width ? w : other, *b = l < width ? bias : other_bias;
            packed[l] = column < columns ? b[column] : 0;
            for (long k = 0; k < depth; k++)
                packed[(k + 1) * PANEL + l] = column < columns ? from[column * depth + k] : 0;
        }
}

/* x (n, depth) -> rows of `columns` in y, each row r at places[r]. */
EXPORT void relmo_linear(long n, long depth, long columns, const float *x, const float *packed, float *y,
                         const long *places) {
    float tiles[TOGETHER * PANEL] __attribute__((aligned(64)));
    for (long row = 0; row < n; row += TOGETHER)
        for (long j = 0; j < columns; j += PANEL) {
            long rows = least(TOGETHER, n - row);
            const float *panel = packed + j / PANEL * (depth + 1) * PANEL;
            sums(rows, depth, x + row * depth, panel, panel + PANEL, tiles);
            for (long r = 0; r < rows; r++)
                for (long v = 0; v < PANEL; v += LANES)
                    if (j + v < columns)
                        store(y + places[row + r] * columns + j + v, load(tiles + r * PANEL + v, LANES),
                              columns - j - v);
        }
}

/* x (n, size) -> y (n, size), which is not x. */
EXPORT void relmo_highway(long n, long size, const float *x, const float *packed, float *y) {
    float tiles[TOGETHER * PANEL] __attribute__((aligned(64)));
    for (long row = 0; row < n; row += TOGETHER)
        for (long j = 0; j < size; j += PANEL / 2) {
            long rows = least(TOGETHER, n - row);
            const float *panel = packed + j / (PANEL / 2) * (size + 1) * PANEL;
            sums(rows, size, x + row * size, panel, panel + PANEL, tiles);
            for (long r = 0; r < rows; r++)
                for (long v = 0; v < PANEL / 2; v += LANES) {
                    long width = size - j - v, at = (row + r) * size + j + v;
                    if (width <= 0) break;
                    const float *sum = tiles + r * PANEL + v;
                    vec g = sigmoid(load(sum, LANES)), t = load(sum + PANEL / 2, LANES);
                    t = (vec)((ivec)t & ~(t < splat(0)));
                    store(y + at, g * t + (1.0f - g) * load(x + at, width), width);
                }
        }
}
