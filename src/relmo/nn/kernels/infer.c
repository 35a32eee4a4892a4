/* A projected, clipped LSTM layer over all its steps, in inference: no values are kept for a backward pass.

       z = gates[word_t] (+ x_t W_ih^T) + h W_hh^T;  c = clip(f c + i g);  m = o tanh(c);  h = clip(m W_hr^T)

   Choices:
   - The gates a step starts from are rows of a table, read where they stand by their number.
   - Products are float32, bfloat16 (sums in float32), or int8 (sums in int32, a scale for BLOCK numbers of a row and of
     a column of weights; m is levelled before it is rounded); all else is float32. `quantize.py` says the same in
     torch's operations. A processor without instructions for bfloat16 multiplies the same rounded numbers in float32;
     int8's sums are exact anywhere.
   - Numbers of all three come in units of four bytes: one, two or four of them along the sum. A weight's vector has one
     unit of each of LANES columns, and a product is: one unit of the input, times a vector of weights, onto sums.
   - Weights are in panels of four vectors, for W_ih and W_hh the four gates of one vector of cells. While a panel is
     worked on by all rows, the next one is fetched, and so are the next rows of gates.
   - Every sum runs over k upwards, one unit after the other, whatever the tile: a row's numbers do not depend on how
     many rows there are, where it stands, or which thread computes it.
   - One call is one direction and the rows [from, to): the caller decides what runs at the same time. */

#include "simd.h"

#if defined(__linux__)
#include <stdint.h>
#include <sys/mman.h>
#endif

#define BLOCK 512 /* numbers that share a scale: their products of 7 bits sum up to less than 2^24 */
#define WAYS 4    /* how many tiles fetch the next panel together, a cache line of 64 bytes per unit of depth */

enum { FLOAT32, BFLOAT16, INT8 };

#if defined(__AVX512BF16__)
static const long NUMBERS[] = {1, 2, 4}; /* in a unit */
#else
static const long NUMBERS[] = {1, 1, 4};
#endif

typedef int integers __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct {
    const int *units;   /* panels of `depth` units, each of up to 4 vectors of columns */
    const float *scale; /* int8: (blocks, columns) */
    const int *start;   /* int8: (blocks, columns), minus 128 times the sum of a column, as inputs are 128 too high */
    const float *level; /* int8: (depth), what inputs are multiplied by before they are rounded, or null */
    long depth;         /* in numbers */
    long columns;       /* a multiple of LANES */
} Matrix;

typedef struct {
    const int *units;
    const float *scale; /* int8: (rows, blocks) */
    long stride;        /* units from one row to the next */
    long blocks;
} Rows;

/* One direction. */
typedef struct {
    long steps, batch, inputs, hidden, outputs;
    long precision;
    long skip;          /* whether y gets x added */
    const long *sizes;  /* how many rows go on at each step */
    float cell_clip, projection_clip;
    const float *gates; /* rows (4 hidden), `stride` apart; one for each of steps * batch if there are no words */
    long stride;
    const long *words;  /* (steps, batch): rows of gates, or null */
    const float *x;     /* (steps, batch, inputs), or null */
    float *y;           /* (steps, batch, outputs): gets the outputs, and zeros past a row's end */
    float *h;           /* (batch, outputs): the state, in place */
    float *c;           /* (batch, hidden), the same */
    float *inner;       /* (batch, hidden), to work in, as all that follow but the weights */
    int *x_units, *h_units, *m_units; /* rows of numbers as the products take them, a multiple of 16; not for float32 */
    float *x_scale, *h_scale, *m_scale;
    Matrix ih, hh, hr;  /* ih without units: x is not multiplied here; hr without: no projection */
} Layer;

/* Asks for large pages for memory that is about to be filled: weights are read faster from these. */
EXPORT void relmo_large_pages(void *start, long bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    uintptr_t page = 1 << 21, first = ((uintptr_t)start + page - 1) / page * page, end = (uintptr_t)start + bytes;
    if (end > first) madvise((void *)first, (end - first) / page * page, MADV_HUGEPAGE);
#else
    (void)start, (void)bytes;
#endif
}

EXPORT long relmo_lanes(void) { return LANES; }

/* How many numbers of a precision stand in a unit. */
EXPORT long relmo_numbers(long precision) { return NUMBERS[precision]; }

/* Whether this processor has all that this build was compiled for, beyond what its name says. */
EXPORT long relmo_supported(void) {
#if defined(__AVX512BF16__)
    if (!__builtin_cpu_supports("avx512bf16")) return 0;
#endif
#if defined(__AVX512VNNI__)
    if (!__builtin_cpu_supports("avx512vnni")) return 0;
#endif
    return 1;
}

/* sum + x w, for unsigned bytes x and signed bytes w, four to a lane. */
INLINE ivec dot_bytes(ivec sum, ivec x, ivec w) {
#if defined(__AVX512VNNI__)
    return (ivec)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
#elif defined(__AVX512BW__)
    __m512i low = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)w, 8), 8), high = _mm512_srai_epi16((__m512i)w, 8);
    sum += (ivec)_mm512_madd_epi16((__m512i)(x & 0x00ff00ff), low);
    return sum + (ivec)_mm512_madd_epi16(_mm512_srli_epi16((__m512i)x, 8), high);
#elif defined(__AVX2__)
    __m256i low = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)w, 8), 8), high = _mm256_srai_epi16((__m256i)w, 8);
    sum += (ivec)_mm256_madd_epi16((__m256i)(x & 0x00ff00ff), low);
    return sum + (ivec)_mm256_madd_epi16(_mm256_srli_epi16((__m256i)x, 8), high);
#else
    for (int byte = 0; byte < 4; byte++) sum += ((x >> 8 * byte) & 255) * ((w << (24 - 8 * byte)) >> 24);
    return sum;
#endif
}

INLINE ivec dot(int precision, ivec sum, ivec x, ivec w) {
    if (precision == INT8) return dot_bytes(sum, x, w);
#if defined(__AVX512BF16__)
    if (precision == BFLOAT16) return (ivec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)w);
#endif
    return (ivec)((vec)sum + (vec)x * (vec)w);
}

/* Where a product takes its factors from. */
typedef struct {
    long depth, stride; /* in units */
    const int *a;       /* rows, `stride` apart */
    const int *b;       /* a panel */
    const char *ahead;  /* what to fetch on the way */
    const float *row_scale, *scale; /* int8: of rows, `blocks` apart, and of columns */
    long blocks;
    const int *start;
} Factors;

/* tile (rows, 4 vectors) += a (rows, depth) b (depth, 4 vectors). */
INLINE void multiply(int precision, int rows, const Factors *of, float *tile) {
    ivec sum[ROWS][VECTORS];
    const int *a = of->a, *b = of->b;
    const char *ahead = of->ahead;
    long stride = of->stride, depth = of->depth;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++)
            sum[r][v] = precision == INT8 ? *(const integers *)(of->start + v * LANES)
                                          : *(const integers *)(tile + (r * VECTORS + v) * LANES);
    for (long k = 0; k < depth; k++) {
        ivec x[ROWS];
        __builtin_prefetch(ahead + k * 64, 0, 2);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) x[r] = a[r * stride + k] - (ivec){0};
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            ivec weight = *(const integers *)(b + (k * VECTORS + v) * LANES);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) sum[r][v] = dot(precision, sum[r][v], x[r], weight);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) {
            float *to = tile + (r * VECTORS + v) * LANES;
            if (precision == INT8) {
                vec by = of->row_scale[r * of->blocks] * *(const anywhere *)(of->scale + v * LANES);
                *(anywhere *)to += by * __builtin_convertvector(sum[r][v], vec);
            } else *(integers *)to = sum[r][v];
        }
}

#define FORM(precision, rows)                                                                                          \
    static void multiply_##precision##_##rows(const Factors *of, float *tile) { multiply(precision, rows, of, tile); }
#define NAME(precision, rows) multiply_##precision##_##rows,
#if ROWS == 6
#define ALL(give, precision)                                                                                           \
    give(precision, 1) give(precision, 2) give(precision, 3) give(precision, 4) give(precision, 5) give(precision, 6)
#else
#define ALL(give, precision) give(precision, 1) give(precision, 2) give(precision, 3)
#endif

ALL(FORM, FLOAT32)
ALL(FORM, BFLOAT16)
ALL(FORM, INT8)

static void (*const MULTIPLY[][ROWS])(const Factors *, float *) = {
    {ALL(NAME, FLOAT32)}, {ALL(NAME, BFLOAT16)}, {ALL(NAME, INT8)}};

INLINE long blocks_of(long width) { return (width + BLOCK - 1) / BLOCK; }

/* tile += rows of a, from `row` on, times the panel of columns from `column` on, over one block of depth. */
INLINE void multiply_block(long precision, long rows, const Rows *a, long row, const Matrix *w, long column, long block,
                           float *tile) {
    long numbers = NUMBERS[precision], units = (w->depth + numbers - 1) / numbers, first = block * BLOCK / numbers;
    const int *b = w->units + column * units + first * PANEL;
    long depth = least(BLOCK / numbers, units - first), turn = row / ROWS;
    const int *ahead = turn < WAYS ? b + units * PANEL + turn * depth * 16 : b;
    Factors of = {depth, a->stride, a->units + row * a->stride + first, b, (const char *)ahead, 0, 0, 0, 0};
    if (precision == INT8) {
        of.row_scale = a->scale + row * a->blocks + block;
        of.blocks = a->blocks;
        of.scale = w->scale + block * w->columns + column;
        of.start = w->start + block * w->columns + column;
    }
    MULTIPLY[precision][rows - 1](&of, tile);
}

INLINE void multiply_all(long precision, long rows, const Rows *a, long row, const Matrix *w, long column,
                         float *tile) {
    for (long block = 0; block < blocks_of(w->depth); block++)
        multiply_block(precision, rows, a, row, w, column, block, tile);
}

INLINE long up_to_16(long width) { return (width + 15) / 16 * 16; }

INLINE vec magnitude(vec x) { return (vec)((ivec)x & 0x7fffffff); }

/* Whole numbers nearest to x, to even ones where two are; as the bytes of inputs, 128 higher. */
INLINE void store_bytes(unsigned char *to, vec x) {
#if LANES == 16
    __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32((__m512)x), _mm512_set1_epi32(128));
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(whole));
#else
#if LANES == 8
    ivec whole = (ivec)_mm256_cvtps_epi32((__m256)x);
#else
    ivec whole;
    for (int l = 0; l < LANES; l++) whole[l] = x[l] == x[l] ? (int)__builtin_rintf(x[l]) : 0;
#endif
    for (int l = 0; l < LANES; l++) to[l] = (unsigned char)(whole[l] + 128);
#endif
}

/* The numbers of a row from j on, levelled where there is something to do it by. */
INLINE vec levelled(const float *x, const float *level, long j, long end) {
    vec numbers = load(x + j, end - j);
    return level ? numbers * load(level + j, end - j) : numbers;
}

/* A row as int8, with a scale a block. A number that is none makes its block's scale none. */
static void bytes_of(long width, const float *x, const float *level, unsigned char *to, float *scale) {
    for (long start = 0; start < width; start += BLOCK) {
        long end = least(width, start + BLOCK);
        vec most = {0}, none = {0};
        for (long j = start; j < end; j += LANES) {
            vec size = magnitude(levelled(x, level, j, end));
            ivec more = size > most;
            most = (vec)(((ivec)size & more) | ((ivec)most & ~more));
            none += size * 0.0f;
        }
        float largest = 0, bad = 0;
        for (int l = 0; l < LANES; l++) {
            largest = most[l] > largest ? most[l] : largest;
            bad += none[l];
        }
        float by = largest > 0 ? 127.0f / largest : 0;
        scale[start / BLOCK] = largest / 127.0f + bad;
        for (long j = start; j < end; j += LANES) store_bytes(to + j, levelled(x, level, j, end) * by);
    }
}

/* A row as bfloat16: rounded to even. */
static void halves_of(long width, const float *x, int *to) {
    for (long j = 0; j < width; j += LANES) {
        vec value = load(x + j, width - j);
#if defined(__AVX512BF16__)
        _mm256_storeu_si256((__m256i *)(to + j / 2), (__m256i)_mm512_cvtneps_pbh((__m512)value));
#else
        ivec bits = (ivec)value, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & ~0xffff, number = value == value;
        *(integers *)(to + j) = (rounded & number) | (bits & ~number);
#endif
    }
}

/* n rows (width) from x on, as the products take them; float32 stays where it is. */
static Rows taken(long precision, long n, long width, const float *x, const float *level, int *units, float *scale) {
    if (precision == FLOAT32) return (Rows){(const int *)x, 0, width, 0};
    Rows to = {units, scale, up_to_16(width) / NUMBERS[precision], blocks_of(width)};
    for (long r = 0; r < n; r++)
        if (precision == INT8)
            bytes_of(width, x + r * width, level, (unsigned char *)(units + r * to.stride), scale + r * to.blocks);
        else halves_of(width, x + r * width, units + r * to.stride);
    return to;
}

/* e^(-scale x), for scale x within ±28 so that three of them can be multiplied. */
INLINE vec power(vec x, float scale) { return exponential(x, scale, 28.0f); }

/* Rows of one vector of cells, from their sums z in the tile. With a = e^-z_i, b = e^-z_f, d = e^-2z_g, e = e^-z_o and
   t = e^-2c, two divisions are enough:
       f c + i g = (c (1 + a)(1 + d) + (1 - d)(1 + b)) / ((1 + a)(1 + d)(1 + b))
       o tanh(c) = (1 - t) / ((1 + t)(1 + e))
   In three passes, each of short chains that the processor can work on side by side. */
INLINE void cells(long rows, long width, long hidden, float *tile, float *c, float *m, float limit) {
    for (long r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int gate = 0; gate < 4; gate++) {
            anywhere *z = (anywhere *)(tile + r * PANEL + gate * LANES);
            *z = power(*z, gate == 2 ? 2.0f : 1.0f);
        }
    for (long r = 0; r < rows; r++) {
        anywhere *z = (anywhere *)(tile + r * PANEL);
        vec under = (z[0] + 1.0f) * (z[2] + 1.0f), b = z[1] + 1.0f;
        vec after = clip((load(c + r * hidden, width) * under + (1.0f - z[2]) * b) / (under * b), limit);
        store(c + r * hidden, after, width);
        z[0] = after;
    }
    for (long r = 0; r < rows; r++) {
        anywhere *z = (anywhere *)(tile + r * PANEL);
        vec t = power(z[0], 2.0f);
        store(m + r * hidden, (1.0f - t) / ((t + 1.0f) * (z[3] + 1.0f)), width);
    }
}

/* The rows from `from` on, of those before `to`, that go on at step t. */
INLINE long going_on(const Layer *layer, long t, long from, long to) {
    long n = least(to, layer->sizes[t]) - from;
    return n > 0 ? n : 0;
}

/* The gates that a row starts from. */
INLINE const float *gates_of(const Layer *layer, long row) {
    return layer->gates + (layer->words ? layer->words[row] : row) * layer->stride;
}

/* rows tiles: their gates from column j on. */
INLINE void start_tile(const Layer *layer, long rows, long row, long j, float *tile) {
    long hidden = layer->hidden, width = least(LANES, hidden - j);
    for (long r = 0; r < rows; r++) {
        const float *gates = gates_of(layer, row + r) + j;
        for (long gate = 0; gate < 4; gate++)
            store(tile + r * PANEL + gate * LANES, load(gates + gate * hidden, width), LANES);
    }
}

/* What a tile of rows is going to need. */
INLINE void fetch(const Layer *layer, long rows, long row, long j, const float *c, const float *m) {
    for (long r = 0; r < rows; r++) {
        const float *gates = gates_of(layer, row + r) + j;
        for (long gate = 0; gate < 4; gate++) __builtin_prefetch(gates + gate * layer->hidden, 0, 2);
        __builtin_prefetch(c + r * layer->hidden, 1, 2);
        __builtin_prefetch(m + r * layer->hidden, 1, 2);
    }
}

/* n rows of one step, the first of them `row` of steps * batch: the gates' sums, tile by tile, through the cells. */
static void step_cells(const Layer *layer, long n, long row, const Rows *x, const Rows *h, float *c, float *m) {
    float tile[ROWS * PANEL] __attribute__((aligned(64)));
    long hidden = layer->hidden, precision = layer->precision;
    for (long j = 0; j < hidden; j += LANES) {
        long width = least(LANES, hidden - j);
        for (long first = 0; first < n; first += ROWS) {
            long rows = least(ROWS, n - first), at = first * hidden + j, next = first + ROWS;
            start_tile(layer, rows, row + first, j, tile);
            long later = next < n ? at + ROWS * hidden : j + LANES;
            if (next < n) fetch(layer, least(ROWS, n - next), row + next, j, c + later, m + later);
            else if (j + LANES < hidden) fetch(layer, least(ROWS, n), row, j + LANES, c + later, m + later);
            if (layer->ih.units) multiply_all(precision, rows, x, first, &layer->ih, 4 * j, tile);
            multiply_all(precision, rows, h, first, &layer->hh, 4 * j, tile);
            if (width == LANES) cells(rows, LANES, hidden, tile, c + at, m + at, layer->cell_clip);
            else cells(rows, width, hidden, tile, c + at, m + at, layer->cell_clip);
        }
    }
}

/* h (n, outputs) = m W_hr^T, a block of depth after the other. */
static void project(const Layer *layer, long n, const Rows *m, float *h) {
    float tile[ROWS * PANEL] __attribute__((aligned(64)));
    long outputs = layer->outputs;
    for (long block = 0; block < blocks_of(layer->hidden); block++)
        for (long j = 0; j < outputs; j += PANEL) {
            long width = least(PANEL, outputs - j);
            for (long row = 0; row < n; row += ROWS) {
                long rows = least(ROWS, n - row);
                for (long r = 0; r < rows; r++)
                    for (long v = 0; v < PANEL; v += LANES) {
                        long here = block && v < width ? width - v : 0;
                        store(tile + r * PANEL + v, load(h + (row + r) * outputs + j + v, here), LANES);
                    }
                multiply_block(layer->precision, rows, m, row, &layer->hr, j, block, tile);
                for (long r = 0; r < rows; r++)
                    for (long v = 0; v < width; v += LANES)
                        store(h + (row + r) * outputs + j + v, load(tile + r * PANEL + v, LANES), width - v);
            }
        }
}

/* All steps of rows [from, to). */
EXPORT void relmo_infer(const Layer *layer, long from, long to) {
    long batch = layer->batch, inputs = layer->inputs, hidden = layer->hidden, outputs = layer->outputs;
    long precision = layer->precision, numbers = NUMBERS[precision];
    float *h = layer->h + from * outputs, *c = layer->c + from * hidden, *inner = layer->inner + from * hidden;
    int *x_units = layer->x_units + from * up_to_16(inputs) / numbers;
    int *h_units = layer->h_units + from * up_to_16(outputs) / numbers;
    int *m_units = layer->m_units + from * up_to_16(hidden) / numbers;
    float *x_scale = layer->x_scale + from * blocks_of(inputs), *h_scale = layer->h_scale + from * blocks_of(outputs);
    float *m_scale = layer->m_scale + from * blocks_of(hidden);
    Rows before = taken(precision, to - from, outputs, h, 0, h_units, h_scale), input = {0};
    for (long t = 0; t < layer->steps; t++) {
        long n = going_on(layer, t, from, to), at = t * batch + from;
        const float *x = layer->x ? layer->x + at * inputs : 0;
        float *y = layer->y + at * outputs;
        if (layer->ih.units) input = taken(precision, n, inputs, x, 0, x_units, x_scale);
        step_cells(layer, n, at, &input, &before, c, inner);
        if (layer->hr.units) {
            Rows m = taken(precision, n, hidden, inner, layer->hr.level, m_units, m_scale);
            project(layer, n, &m, h);
        } else memcpy(h, inner, n * hidden * sizeof(float));
        for (long j = 0; j < n * outputs; j += LANES) {
            long width = n * outputs - j;
            vec value = clip(load(h + j, width), layer->projection_clip);
            store(h + j, value, width);
            store(y + j, layer->skip ? value + load(x + j, width) : value, width);
        }
        memset(y + n * outputs, 0, (to - from - n) * outputs * sizeof(float));
        before = taken(precision, n, outputs, h, 0, h_units, h_scale);
    }
}

/* to (…, 4 hidden) = gates + x W_ih^T for rows [from, to) of all steps * batch, with the very sums that relmo_infer would
   start by. Where rows are few and weights large it pays to go through w_ih once instead of at every step. */
EXPORT void relmo_infer_gates(const Layer *layer, long from, long to, float *gates) {
    float tile[ROWS * PANEL] __attribute__((aligned(64)));
    long hidden = layer->hidden, inputs = layer->inputs, precision = layer->precision;
    int *units = layer->x_units + from * up_to_16(inputs) / NUMBERS[precision];
    float *scale = layer->x_scale + from * blocks_of(inputs);
    Rows x = taken(precision, to - from, inputs, layer->x + from * inputs, 0, units, scale);
    for (long j = 0; j < hidden; j += LANES)
        for (long row = from; row < to; row += ROWS) {
            long rows = least(ROWS, to - row);
            start_tile(layer, rows, row, j, tile);
            multiply_all(precision, rows, &x, row - from, &layer->ih, 4 * j, tile);
            for (long r = 0; r < rows; r++)
                for (long gate = 0; gate < 4; gate++)
                    store(gates + ((row + r) * 4 + gate) * hidden + j, load(tile + r * PANEL + gate * LANES, LANES),
                          least(LANES, hidden - j));
        }
}
