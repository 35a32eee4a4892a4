/* A projected, clipped LSTM layer over all its steps, forward and backward, in float32, for training.

       forward    z = b + x_t W_ih^T + h W_hh^T;  i, f, g, o = activate(z)
                  c = clip(f c + i g);  m = o tanh(c);  h = clip(m W_hr^T)
       backward   dh = unclipped(dy_t + dz_{t+1} W_hh);  dm = dh W_hr;  dz_t and dc from dm;  dx_t = dz_t W_ih
       weights    dW_ih = dz^T x;  dW_hh = dz^T h;  db = dz^T 1;  dW_hr = dh^T m     over all steps, at the end

   Choices:
   - Weights are packed once a call into panels of four vectors: a panel of W_hh has the four gates of one vector of
     cells, so that a tile of sums (ROWS rows x 4 vectors, all in registers) becomes cells without going through memory.
   - Every sum runs over k upwards, one product after the other, whatever the tile: a row's numbers do not depend on
     how many rows there are, where it stands, or which thread computes it. Columns past the last are computed as zeros.
   - One call is one direction and the rows [from, to): the caller decides what runs at the same time.

   Buffers are contiguous and have room for `batch` rows a step; sizes[t] rows go on at step t, longest first. Plain C
   with vector extensions of GCC and Clang; the width of a vector is the machine's for which the file is compiled. */

#include "tile.h"

/* c (n, columns) += a (n, depth) b, with b packed. */
static void product(long n, long depth, long columns, const float *a, const float *b, float *c) {
    float tile[ROWS * PANEL] __attribute__((aligned(64)));
    for (long k = 0; k < depth; k += DEPTH)
        for (long j = 0; j < columns; j += PANEL) {
            long width = least(PANEL, columns - j), vectors = (width + LANES - 1) / LANES;
            const float *panel = b + j * depth + k * vectors * LANES;
            for (long row = 0; row < n; row += ROWS) {
                long rows = least(ROWS, n - row);
                for (long r = 0; r < rows; r++)
                    for (long v = 0; v < vectors; v++)
                        store(tile + r * PANEL + v * LANES,
                              load(c + (row + r) * columns + j + v * LANES, width - v * LANES), LANES);
                MULTIPLY[rows - 1][vectors - 1](least(DEPTH, depth - k), a + row * depth + k, depth, panel, tile);
                for (long r = 0; r < rows; r++)
                    for (long v = 0; v < vectors; v++)
                        store(c + (row + r) * columns + j + v * LANES, load(tile + r * PANEL + v * LANES, LANES),
                              width - v * LANES);
            }
        }
}

/* One direction; all is contiguous. */
typedef struct {
    long steps, batch, inputs, hidden, outputs;
    const long *sizes; /* how many rows go on at each step */
    float cell_clip, projection_clip;
    const float *x;    /* (steps, batch, inputs), or null: then gates come with what x and bias would give */
    const float *bias; /* (4 hidden) */
    float *gates;      /* (steps, batch, 4 hidden): their values, and after the backward pass their gradients */
    float *h;          /* (steps + 1, batch, outputs): from the state before the first step on */
    float *c;          /* (steps + 1, batch, hidden) */
    float *inner;      /* (steps, batch, hidden): m, what is projected; not used without w_hr */
    float *final_h;    /* (batch, outputs): comes with the first state, gets the one at each row's end */
    float *final_c;    /* (batch, hidden), the same */
    const float *w_ih, *w_hh, *w_hr; /* packed for the pass; w_hr null: no projection */
    const float *dy;                 /* (steps, batch, outputs) */
    float *dx;                       /* (steps, batch, inputs), or null */
    float *dh;                       /* (steps, batch, outputs): gets the gradient of the outputs before their clip */
    float *dc, *later;               /* (batch, hidden) and (batch, outputs): zeros, to work in */
} Layer;

/* Changes whenever a structure or a function's arguments do. */
EXPORT long relmo_version(void) { return 4; }

/* How many floats the packed form of a matrix (depth, columns) has. */
EXPORT long relmo_packed(long depth, long columns) { return depth * ((columns + LANES - 1) / LANES) * LANES; }

/* One vector of columns: to[k room + l] = w[k down + l right], and zeros from column `width` on. Sixteen rows at a time,
   so that what is read and what is written both stay in the cache. */
INLINE void pack_vector(const float *w, long depth, long width, long down, long right, float *to, long room) {
    for (long k = 0; k < depth; k += 16) {
        long end = least(depth, k + 16);
        for (long l = 0; l < LANES; l++)
            for (long r = k; r < end; r++) to[r * room + l] = l < width ? w[r * down + l * right] : 0;
    }
}

/* w (depth, columns), of which element (k, j) stands at w[k down + j right] -> panels of 4 vectors of columns. */
EXPORT void relmo_pack(const float *w, long depth, long columns, long down, long right, float *packed) {
    for (long j = 0; j < columns; j += LANES) {
        long first = j - j % PANEL, room = (least(PANEL, columns - first) + LANES - 1) / LANES * LANES;
        float *to = packed + first * depth + j % PANEL;
        long width = least(LANES, columns - j);
        if (right == 1 && width == LANES)
            for (long k = 0; k < depth; k++) store(to + k * room, load(w + k * down + j, LANES), LANES);
        else pack_vector(w + j * right, depth, width, down, right, to, room);
    }
}

/* w (4 hidden, depth) -> panels of one vector of cells with its four gates, each (depth, 4, LANES). */
EXPORT void relmo_pack_gates(const float *w, long hidden, long depth, float *packed) {
    for (long j = 0; j < hidden; j += LANES)
        for (long gate = 0; gate < 4; gate++)
            pack_vector(w + (gate * hidden + j) * depth, depth, least(LANES, hidden - j), 1, depth,
                        packed + j * 4 * depth + gate * LANES, PANEL);
}

/* The rows from `from` on, of those before `to`, that go on at step t. */
INLINE long rows_at(const Layer *layer, long t, long from, long to) {
    long n = t < layer->steps ? least(to, layer->sizes[t]) - from : 0;
    return n > 0 ? n : 0;
}

/* Rows of one vector of cells, from their sums z in the tile; fills c_next, m and gates. */
INLINE void cells_forward(long rows, long width, long hidden, const float *tile, float *gates, const float *c,
                          float *c_next, float *m, float limit) {
    for (long r = 0; r < rows; r++) {
        const float *z = tile + r * PANEL;
        vec i = sigmoid(load(z, LANES)), f = sigmoid(load(z + LANES, LANES));
        vec g = tanh_of(load(z + 2 * LANES, LANES)), o = sigmoid(load(z + 3 * LANES, LANES));
        vec after = clip(f * load(c + r * hidden, width) + i * g, limit);
        store(c_next + r * hidden, after, width);
        store(m + r * hidden, o * tanh_of(after), width);
        float *to = gates + r * 4 * hidden;
        store(to, i, width);
        store(to + hidden, f, width);
        store(to + 2 * hidden, g, width);
        store(to + 3 * hidden, o, width);
    }
}

/* n rows of one step: the gates' sums, tile by tile, and through the cells. */
static void step_forward(const Layer *layer, long n, const float *x, float *gates, const float *h, const float *c,
                         float *c_next, float *m) {
    float tile[ROWS * PANEL] __attribute__((aligned(64)));
    long hidden = layer->hidden, inputs = layer->inputs, outputs = layer->outputs;
    for (long j = 0; j < hidden; j += LANES) {
        long width = least(LANES, hidden - j);
        for (long row = 0; row < n; row += ROWS) {
            long rows = least(ROWS, n - row), at = row * hidden + j;
            for (long r = 0; r < rows; r++) {
                const float *start = layer->bias + j;
                for (long gate = 0; gate < 4; gate++)
                    store(tile + r * PANEL + gate * LANES, load(start + gate * hidden, width), LANES);
            }
            MULTIPLY[rows - 1][3](inputs, x + row * inputs, inputs, layer->w_ih + j * 4 * inputs, tile);
            MULTIPLY[rows - 1][3](outputs, h + row * outputs, outputs, layer->w_hh + j * 4 * outputs, tile);
            float *values = gates + row * 4 * hidden + j;
            if (width == LANES)
                cells_forward(rows, LANES, hidden, tile, values, c + at, c_next + at, m + at, layer->cell_clip);
            else cells_forward(rows, width, hidden, tile, values, c + at, c_next + at, m + at, layer->cell_clip);
        }
    }
}

/* All steps of rows [from, to). w_ih and w_hh packed by gates, w_hr as (hidden, outputs). */
EXPORT void relmo_forward(const Layer *layer, long from, long to) {
    long batch = layer->batch, inputs = layer->inputs, hidden = layer->hidden, outputs = layer->outputs;
    for (long t = 0; t < layer->steps; t++) {
        long n = rows_at(layer, t, from, to), going_on = rows_at(layer, t + 1, from, to), rest = to - from - n;
        long at = t * batch + from;
        const float *x = layer->x + at * inputs;
        float *gates = layer->gates + at * 4 * hidden;
        float *h = layer->h + at * outputs, *h_next = h + batch * outputs;
        float *c = layer->c + at * hidden, *c_next = c + batch * hidden;
        float *m = layer->w_hr ? layer->inner + at * hidden : h_next;
        step_forward(layer, n, x, gates, h, c, c_next, m);
        if (layer->w_hr) {
            memset(h_next, 0, n * outputs * sizeof(float));
            product(n, hidden, outputs, m, layer->w_hr, h_next);
            for (long j = 0; j < n * outputs; j += LANES)
                store(h_next + j, clip(load(h_next + j, n * outputs - j), layer->projection_clip), n * outputs - j);
            memset(m + n * hidden, 0, rest * hidden * sizeof(float));
        }
        memset(h_next + n * outputs, 0, rest * outputs * sizeof(float));
        if (going_on < n) { /* the others end here */
            memcpy(layer->final_h + (from + going_on) * outputs, h_next + going_on * outputs,
                   (n - going_on) * outputs * sizeof(float));
            memcpy(layer->final_c + (from + going_on) * hidden, c_next + going_on * hidden,
                   (n - going_on) * hidden * sizeof(float));
        }
    }
}

/* Rows of one vector of cells: gates become their gradients before activation; dc, the gradient that reaches the cell
   from later steps, becomes the one for earlier steps. */
INLINE void cells_backward(long rows, long width, long hidden, const float *dm, long stride, float *gates,
                           const float *c, const float *c_next, float *dc, float limit) {
    for (long r = 0; r < rows; r++) {
        float *z = gates + r * 4 * hidden;
        vec i = load(z, width), f = load(z + hidden, width);
        vec g = load(z + 2 * hidden, width), o = load(z + 3 * hidden, width);
        vec after = load(c_next + r * hidden, width), to_m = load(dm + r * stride, width);
        vec t = tanh_of(after);
        vec to_c = unclipped(load(dc + r * hidden, width) + to_m * o * (1.0f - t * t), after, limit);
        store(z, to_c * g * i * (1.0f - i), width);
        store(z + hidden, to_c * load(c + r * hidden, width) * f * (1.0f - f), width);
        store(z + 2 * hidden, to_c * i * (1.0f - g * g), width);
        store(z + 3 * hidden, to_m * t * o * (1.0f - o), width);
        store(dc + r * hidden, to_c * f, width);
    }
}

/* n rows of one step: dm = dh W_hr, tile by tile, and through the cells. */
static void step_backward(const Layer *layer, long n, const float *dh, float *gates, const float *c,
                          const float *c_next, float *dc) {
    float tile[ROWS * PANEL] __attribute__((aligned(64)));
    long hidden = layer->hidden, outputs = layer->outputs;
    float limit = layer->cell_clip;
    for (long j = 0; j < hidden; j += PANEL) {
        long room = least(PANEL, hidden - j), vectors = (room + LANES - 1) / LANES;
        for (long row = 0; row < n; row += ROWS) {
            long rows = least(ROWS, n - row), stride = layer->w_hr ? PANEL : hidden;
            const float *dm = layer->w_hr ? tile : dh + row * hidden + j;
            if (layer->w_hr) {
                memset(tile, 0, sizeof tile);
                MULTIPLY[rows - 1][vectors - 1](outputs, dh + row * outputs, outputs, layer->w_hr + j * outputs, tile);
            }
            for (long v = 0; v < room; v += LANES) {
                long at = row * hidden + j + v, width = least(LANES, room - v);
                float *z = gates + row * 4 * hidden + j + v;
                if (width == LANES)
                    cells_backward(rows, LANES, hidden, dm + v, stride, z, c + at, c_next + at, dc + at, limit);
                else cells_backward(rows, width, hidden, dm + v, stride, z, c + at, c_next + at, dc + at, limit);
            }
        }
    }
}

/* All steps of rows [from, to), last first. w_ih packed as (4 hidden, inputs), w_hh as (4 hidden, outputs), w_hr as
   (outputs, hidden). */
EXPORT void relmo_backward(const Layer *layer, long from, long to) {
    long batch = layer->batch, inputs = layer->inputs, hidden = layer->hidden, outputs = layer->outputs;
    float *later = layer->later + from * outputs, *dc = layer->dc + from * hidden;
    for (long t = layer->steps - 1; t >= 0; t--) {
        long n = rows_at(layer, t, from, to), rest = to - from - n, at = t * batch + from, next = at + batch;
        float *gates = layer->gates + at * 4 * hidden, *dh = layer->dh + at * outputs;
        const float *dy = layer->dy + at * outputs, *h_next = layer->h + next * outputs;
        for (long j = 0; j < n * outputs; j += LANES) {
            long width = n * outputs - j;
            vec sum = load(dy + j, width) + load(later + j, width);
            store(dh + j, unclipped(sum, load(h_next + j, width), layer->projection_clip), width);
        }
        step_backward(layer, n, dh, gates, layer->c + at * hidden, layer->c + next * hidden, dc);
        memset(dh + n * outputs, 0, rest * outputs * sizeof(float));
        memset(gates + n * 4 * hidden, 0, rest * 4 * hidden * sizeof(float));
        if (layer->dx) {
            memset(layer->dx + at * inputs, 0, (to - from) * inputs * sizeof(float));
            product(n, 4 * hidden, inputs, gates, layer->w_ih, layer->dx + at * inputs);
        }
        if (t == 0) break; /* the first state gets no gradient */
        memset(later, 0, n * outputs * sizeof(float));
        product(n, 4 * hidden, outputs, gates, layer->w_hh, later);
    }
}

/* a (length, columns) -> its transposed, rows `stride` apart. */
static void transpose(long length, long columns, const float *a, float *to, long stride) {
    for (long k = 0; k < length; k += 16)
        for (long r = 0; r < columns; r++)
            for (long l = k; l < least(length, k + 16); l++) to[r * stride + l] = a[l * columns + r];
}

INLINE long stride_of(const Layer *layer) { return layer->steps * layer->batch + 16; /* not a power of two */ }

INLINE long wanted_rows(const Layer *layer) { return layer->inputs + layer->outputs + 1; }

/* How many floats relmo_weights works in. */
EXPORT long relmo_room(const Layer *layer) {
    return wanted_rows(layer) * stride_of(layer) + DEPTH * PANEL + (wanted_rows(layer) + ROWS) * PANEL;
}

/* sums (rows, PANEL) = a (rows, length) b[:, j : j + PANEL], for b (length, columns). */
static void panel_of_product(long rows, long length, const float *a, long stride, const float *b, long columns, long j,
                             float *panel, float *sums) {
    memset(sums, 0, rows * PANEL * sizeof(float));
    long width = least(PANEL, columns - j);
    if (width < PANEL) memset(panel, 0, DEPTH * PANEL * sizeof(float));
    for (long k = 0; k < length; k += DEPTH) {
        long depth = least(DEPTH, length - k);
        for (long l = 0; l < depth; l++) memcpy(panel + l * PANEL, b + (k + l) * columns + j, width * sizeof(float));
        for (long row = 0; row < rows; row += ROWS)
            MULTIPLY[least(ROWS, rows - row) - 1][3](depth, a + row * stride + k, stride, panel, sums + row * PANEL);
    }
}

/* After the backward pass: d_ih (4 hidden, inputs), d_hh (4 hidden, outputs), d_bias (4 hidden), and
   d_hr (outputs, hidden) where there is w_hr. */
EXPORT void relmo_weights(const Layer *layer, float *d_ih, float *d_hh, float *d_bias, float *d_hr, float *room) {
    long length = layer->steps * layer->batch, stride = stride_of(layer), columns = 4 * layer->hidden;
    long inputs = layer->inputs, outputs = layer->outputs, rows = inputs + outputs + 1;
    float *a = room, *panel = room + wanted_rows(layer) * stride, *sums = panel + DEPTH * PANEL;
    transpose(length, inputs, layer->x, a, stride);
    transpose(length, outputs, layer->h, a + inputs * stride, stride);
    for (long k = 0; k < length; k++) a[(rows - 1) * stride + k] = 1;
    for (long j = 0; j < columns; j += PANEL) {
        panel_of_product(rows, length, a, stride, layer->gates, columns, j, panel, sums);
        for (long l = 0; l < least(PANEL, columns - j); l++) {
            for (long r = 0; r < inputs; r++) d_ih[(j + l) * inputs + r] = sums[r * PANEL + l];
            for (long r = 0; r < outputs; r++) d_hh[(j + l) * outputs + r] = sums[(inputs + r) * PANEL + l];
            d_bias[j + l] = sums[(rows - 1) * PANEL + l];
        }
    }
    if (!layer->w_hr) return;
    transpose(length, outputs, layer->dh, a, stride);
    for (long j = 0; j < layer->hidden; j += PANEL) {
        panel_of_product(outputs, length, a, stride, layer->inner, layer->hidden, j, panel, sums);
        for (long r = 0; r < outputs; r++)
            memcpy(d_hr + r * layer->hidden + j, sums + r * PANEL, least(PANEL, layer->hidden - j) * sizeof(float));
    }
}
