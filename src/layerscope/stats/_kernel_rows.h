/* Mean, mean magnitude, standard deviation and largest magnitude of each row of a matrix. Included once, by `_kernel.c`.

   Sums are in float64. Deviations are relative to the row's first element, so that a mean far from zero loses no digits.
   Statistics cover the finite elements; a row without any has NaN. */

enum { ROW_NUMBERS = 4, OVER_NUMBERS = 3 * ROW_NUMBERS };

typedef struct {
    lanes sum, sum_abs, sum2, top;
} row_sums;

INLINE void raise_to(lanes *top, const lanes *size) {
    lane_bits larger = *size > *top;
    *top = (lanes)(((lane_bits)*size & larger) | ((lane_bits)*top & ~larger));
}

INLINE void add_four(row_sums *to, const lanes *x, const lanes *shift) {
    const lane_bits magnitude = {MAGNITUDE, MAGNITUDE, MAGNITUDE, MAGNITUDE};
    lanes size = SIZE_OF(*x), away = *x - *shift;
    to->sum += away;
    to->sum_abs += size;
    to->sum2 += away * away;
    raise_to(&to->top, &size);
}

/* Elements that do not fill all lanes use the first one; the others are neutral. */
INLINE void add_rest(row_sums *to, const double *x, int n, double shift) {
    for (int i = 0; i < n; i++) {
        double away = x[i] - shift, size = fabs(x[i]);
        to->sum[0] += away;
        to->sum_abs[0] += size;
        to->sum2[0] += away * away;
        to->top[0] = size > to->top[0] ? size : to->top[0];
    }
}

/* Sums over the finite elements of a row; returns their number. */
static double add_finite(const tensor *x, int64_t start, int64_t end, row_sums *to, double *shift, block_buffers *room) {
    double finite = 0.0;
    for (int64_t at = start; at < end; at += BLOCK) {
        int n = block_size(at, end);
        const double *wide = wide_values(x, raw_block(x, at, n, room), n, room);
        for (int i = 0; i < n; i++) {
            if (!isfinite(wide[i])) continue;
            if (finite == 0.0) *shift = wide[i];
            add_rest(to, wide + i, 1, *shift);
            finite += 1.0;
        }
    }
    return finite;
}

INLINE void one_row(const tensor *x, int64_t start, int64_t end, double *to, block_buffers *room) {
    const lanes none = {0};
    row_sums even = {none, none, none, none}, odd = even;
    double shift = 0.0, count = (double)(end - start);
    for (int64_t at = start; at < end; at += BLOCK) {
        int n = block_size(at, end), i = 0;
        const double *wide = wide_values(x, raw_block(x, at, n, room), n, room);
        if (at == start && isfinite(wide[0])) shift = wide[0];
        lanes shifts = {shift, shift, shift, shift};
        for (; i + 8 <= n; i += 8) {
            add_four(&even, &FOUR(wide + i), &shifts);
            add_four(&odd, &FOUR(wide + i + 4), &shifts);
        }
        add_rest(&even, wide + i, n - i, shift);
    }
    lanes sum_abs = even.sum_abs + odd.sum_abs;
    if (!isfinite(total(&sum_abs))) {
        even = odd = (row_sums){none, none, none, none};
        count = add_finite(x, start, end, &even, &shift, room);
        sum_abs = even.sum_abs;
    }
    lanes sum = even.sum + odd.sum, sum2 = even.sum2 + odd.sum2;
    double mean = total(&sum) / count, variance = total(&sum2) / count - mean * mean, size = total(&sum_abs) / count;
    raise_to(&even.top, &odd.top);
    for (int k = 1; k < 4; k++) even.top[0] = even.top[k] > even.top[0] ? even.top[k] : even.top[0];
    to[0] = shift + mean;
    to[1] = size;
    to[2] = variance < 0.0 ? 0.0 : sqrt(variance);
    to[3] = isnan(size) ? NAN : even.top[0];
}

INLINE void each_row(const tensor *x, int64_t rows, double *to) {
    block_buffers room;
    int64_t columns = rows ? x->count / rows : 0;
    for (int64_t row = 0; row < rows; row++)
        one_row(x, row * columns, (row + 1) * columns, to + row * ROW_NUMBERS, &room);
}

/* Mean, standard deviation and largest magnitude of each statistic over all rows; NaN if one of them is. */
static void over_rows(const double *x, int64_t rows, double *to) {
    for (int k = 0; k < ROW_NUMBERS; k++, to += 3) {
        double sum = 0.0, sum2 = 0.0, top = 0.0;
        for (int64_t row = 0; row < rows; row++) {
            double size = fabs(x[row * ROW_NUMBERS + k]);
            sum += x[row * ROW_NUMBERS + k];
            top = size > top || isnan(size) ? size : top;
        }
        to[0] = sum / (double)rows;
        for (int64_t row = 0; row < rows; row++) {
            double away = x[row * ROW_NUMBERS + k] - to[0];
            sum2 += away * away;
        }
        to[1] = sqrt(sum2 / (double)rows);
        to[2] = isnan(sum) ? NAN : top;
    }
}

__attribute__((noinline)) static void rows_plain(const tensor *x, int64_t rows, double *to) { each_row(x, rows, to); }
static void (*best_rows)(const tensor *, int64_t, double *) = rows_plain;

#ifdef AVX2
__attribute__((noinline, target("avx2,fma,bmi2"))) static void rows_avx2(const tensor *x, int64_t rows, double *to) {
    each_row(x, rows, to);
}
#endif

static void choose_rows(void) {
#ifdef AVX2
    if (best_walk == walk_avx2) best_rows = rows_avx2;
#endif
}
