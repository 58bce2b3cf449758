/* Buckets of stored bit-counts: decoding, merging rows, counting between edges, quantiles. Included once, by `_kernel.c`.
   Each function computes the same as the numpy function of the same name in `derived.py`. */

#include <stdlib.h>

/* Columns of `BitRows` in `derived.py`. */
typedef struct {
    int64_t *row;
    double *low, *high;
    int64_t *counts;
    int32_t *exponent;
} buckets;

/* Encoded bit-counts; row i of `m[i]` mantissa bits ends `offsets[i + 1] - offsets[0]` bytes from the start. */
typedef struct {
    const uint8_t *m;
    const int64_t *offsets;
    const uint8_t *encoded;
    const double *smallest, *largest; /* finite elements of each row */
} stored;

typedef struct {
    double low, high;
    int64_t count;
    int32_t exponent;
} bucket;

static double bound_of(int exponent, int64_t top, int m) {
    if (exponent < -1022 || exponent > 1023) return ldexp(1.0 + (double)top / (double)(INT64_C(1) << m), exponent);
    uint64_t bits = ((uint64_t)(exponent + 1023) << 52) + ((uint64_t)top << (52 - m)); /* 2^m carries into the exponent */
    double bound;
    memcpy(&bound, &bits, sizeof bound);
    return bound;
}

static bucket bucket_of(int64_t code, int64_t count, int m, double smallest, double largest) {
    int64_t magnitude = code < 0 ? -code : code, top = magnitude & ((INT64_C(1) << m) - 1);
    int exponent = (int)(magnitude >> m) - (TOP_FIELD - 1024);
    double near = bound_of(exponent, top, m), far = bound_of(exponent, top + 1, m);
    double low = code < 0 ? -far : near, high = code < 0 ? -near : far;
    low = low >= smallest ? low : smallest;
    high = high <= largest ? high : largest;
    return (bucket){low, high >= low ? high : low, count, exponent};
}

static const uint8_t *take_number(const uint8_t *from, const uint8_t *end, uint64_t *number) {
    *number = 0;
    for (int shift = 0; from < end; shift += 7) {
        uint8_t byte = *from++;
        *number |= (uint64_t)(byte & 0x7f) << (shift & 63);
        if (byte < 0x80) break;
    }
    return from;
}

static int64_t numbers_in(const uint8_t *from, const uint8_t *end) {
    int64_t n = 0;
    for (; from < end; from++) n += *from < 0x80;
    return n;
}

static int64_t decode_row(const stored *all, int64_t row, bucket *to) {
    const uint8_t *gaps = all->encoded + (all->offsets[row] - all->offsets[0]);
    const uint8_t *end = all->encoded + (all->offsets[row + 1] - all->offsets[0]), *counts = gaps;
    int m = all->m[row] <= FINEST_M ? all->m[row] : FINEST_M;
    int64_t n = numbers_in(gaps, end) / 2, code = -(((int64_t)TOP_FIELD << m) + 1);
    uint64_t number;
    for (int64_t k = 0; k < n; counts++) k += *counts < 0x80;
    for (int64_t k = 0; k < n; k++) {
        gaps = take_number(gaps, end, &number);
        code += (int64_t)number;
        counts = take_number(counts, end, &number);
        to[k] = bucket_of(code, (int64_t)number, m, all->smallest[row], all->largest[row]);
    }
    return n;
}

static int comes_first(const bucket *a, const bucket *b) {
    return a->low < b->low || (a->low == b->low && a->high <= b->high);
}

/* Merge two sorted runs and add equal buckets; returns the number of buckets. */
static int64_t merge_two(const bucket *a, int64_t in_a, const bucket *b, int64_t in_b, bucket *to) {
    const bucket *end_a = a + in_a, *end_b = b + in_b, *start = to;
    while (a < end_a && b < end_b) {
        if (!comes_first(a, b)) {
            *to++ = *b++;
            continue;
        }
        *to = *a++;
        if (to->low == b->low && to->high == b->high) to->count += b++->count;
        to++;
    }
    while (a < end_a) *to++ = *a++;
    while (b < end_b) *to++ = *b++;
    return to - start;
}

/* Merge neighboring runs, `lengths` of them end to end, until one is left; `other` has as much room. */
static int64_t merge_runs(bucket **runs, bucket **other, int64_t *lengths, int64_t count) {
    for (; count > 1; count = (count + 1) / 2) {
        bucket *from = *runs, *to = *other;
        for (int64_t k = 0; k < count; k += 2) {
            int64_t second = k + 1 < count ? lengths[k + 1] : 0;
            int64_t merged = merge_two(from, lengths[k], from + lengths[k], second, to);
            from += lengths[k] + second;
            to += merged;
            lengths[k / 2] = merged;
        }
        bucket *swapped = *runs;
        *runs = *other;
        *other = swapped;
    }
    return count ? lengths[0] : 0;
}

/* Merge the buckets of each group of rows, `starts[g]` to `starts[g + 1]`; returns their number, or -1 without memory. */
static int64_t decode_groups(const stored *all, const int64_t *starts, int64_t groups, buckets *to) {
    int64_t most_rows = 1, most_bytes = 1, n = 0;
    for (int64_t g = 0; g < groups; g++) {
        int64_t rows = starts[g + 1] - starts[g], bytes = all->offsets[starts[g + 1]] - all->offsets[starts[g]];
        most_rows = rows > most_rows ? rows : most_rows;
        most_bytes = bytes > most_bytes ? bytes : most_bytes;
    }
    bucket *room = malloc((size_t)most_bytes * sizeof *room); /* a bucket takes two bytes at least */
    int64_t *lengths = malloc((size_t)most_rows * sizeof *lengths);
    for (int64_t g = 0; room != NULL && lengths != NULL && g < groups; g++) {
        bucket *runs = room, *other = room + most_bytes / 2;
        int64_t rows = starts[g + 1] - starts[g], used = 0;
        for (int64_t k = 0; k < rows; k++) used += lengths[k] = decode_row(all, starts[g] + k, runs + used);
        int64_t merged = merge_runs(&runs, &other, lengths, rows);
        for (int64_t k = 0; k < merged; k++, n++) {
            to->row[n] = g;
            to->low[n] = runs[k].low;
            to->high[n] = runs[k].high;
            to->counts[n] = runs[k].count;
            to->exponent[n] = runs[k].exponent;
        }
    }
    int failed = room == NULL || lengths == NULL;
    free(room);
    free(lengths);
    return failed ? -1 : n;
}

/* The first of ascending edges, from `at` on, that is not below x. */
static int64_t edge_from(const double *edges, int64_t count, int64_t at, double x) {
    while (at < count && edges[at] < x) at++;
    return at;
}

/* Add a bucket: completely to the first edge above it, and its share to each edge inside it. */
static int64_t add_between(const buckets *of, int64_t k, const double *edges, int64_t count, int64_t at, double *whole,
                           double *parts) {
    double low = of->low[k], high = of->high[k], in_bucket = (double)of->counts[k];
    int64_t first = edge_from(edges, count, at, low), behind = edge_from(edges, count, first, high);
    if (low == high) { /* elements on the last edge are below it, on another one they are not */
        while (behind < count && edges[behind] <= low) behind++;
        behind -= low == edges[count - 1];
    } else {
        for (int64_t edge = first; edge < behind; edge++) parts[edge] += (edges[edge] - low) / (high - low) * in_bucket;
    }
    whole[behind] += in_bucket;
    return first;
}

/* Number of elements of each row below each edge, (rows, edges); -1 without memory. */
static int cumulative(const buckets *of, int64_t n, const double *edges, int64_t count, int64_t rows, double *to) {
    double *whole = malloc((size_t)(count + 1) * sizeof *whole);
    if (whole == NULL) return -1;
    for (int64_t row = 0, k = 0; row < rows; row++, to += count) {
        int64_t at = 0;
        double total = 0.0, below = 0.0;
        memset(to, 0, (size_t)count * sizeof *to);
        memset(whole, 0, (size_t)(count + 1) * sizeof *whole);
        for (int64_t first = k; k < n && of->row[k] == row; k++) {
            if (k > first && of->low[k] < of->low[k - 1]) at = 0;
            at = add_between(of, k, edges, count, at, whole, to);
            total += (double)of->counts[k];
        }
        for (int64_t edge = 0; edge < count; edge++) {
            below += whole[edge];
            to[edge] = below + to[edge] < total ? below + to[edge] : total;
        }
    }
    free(whole);
    return 0;
}

/* One quantile of the row whose buckets are k to end - 1; its zeros are between the signs. `so_far` elements are in the
   previous rows: numpy accumulates over all rows, so the position is rounded in the same way. */
static double quantile(const buckets *of, int64_t k, int64_t end, int64_t zeros, int64_t so_far, int64_t total,
                       double share) {
    double before = (double)(so_far + total) - (double)total, wanted = share * ((double)(so_far + total) - before);
    int64_t upto = so_far, in_bucket = 0;
    double low = NAN, high = NAN;
    while (k < end || zeros) {
        int at_zeros = zeros && (k == end || of->low[k] >= 0);
        low = at_zeros ? 0.0 : of->low[k];
        high = at_zeros ? 0.0 : of->high[k];
        upto += in_bucket = at_zeros ? zeros : of->counts[k];
        if (at_zeros) zeros = 0;
        else k++;
        if ((double)upto >= before + wanted) break;
    }
    double inside = (wanted - ((double)upto - before - (double)in_bucket)) / (double)in_bucket;
    inside = inside < 0.0 ? 0.0 : inside > 1.0 ? 1.0 : inside;
    return low + inside * (high - low);
}

static void quantiles(const buckets *of, int64_t n, const double *zeros, int64_t rows, const double *shares,
                      int64_t count, double *to) {
    for (int64_t row = 0, k = 0, so_far = 0; row < rows; row++) {
        int64_t first = k, total = (int64_t)zeros[row];
        for (; k < n && of->row[k] == row; k++) total += of->counts[k];
        for (int64_t s = 0; s < count; s++)
            *to++ = quantile(of, first, k, (int64_t)zeros[row], so_far, total, shares[s]);
        so_far += total;
    }
}

/* ---- Python ---- */

/* The arguments, all of them numbers or addresses; returns 0 with an error set if they are not. */
static int read_numbers(PyObject *const *args, Py_ssize_t given, Py_ssize_t expected, int64_t *to) {
    if (given != expected) {
        PyErr_Format(PyExc_TypeError, "%zd numbers are expected, not %zd", expected, given);
        return 0;
    }
    for (Py_ssize_t k = 0; k < given; k++) to[k] = PyLong_AsLongLong(args[k]);
    return !PyErr_Occurred();
}

static buckets buckets_at(const int64_t *columns) {
    return (buckets){(int64_t *)(intptr_t)columns[0], (double *)(intptr_t)columns[1], (double *)(intptr_t)columns[2],
                     (int64_t *)(intptr_t)columns[3], (int32_t *)(intptr_t)columns[4]};
}

static PyObject *py_decode(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t of[12], decoded;
    if (!read_numbers(args, given, 12, of)) return NULL;
    stored all = {(const uint8_t *)(intptr_t)of[0], (const int64_t *)(intptr_t)of[1], (const uint8_t *)(intptr_t)of[2],
                  (const double *)(intptr_t)of[3], (const double *)(intptr_t)of[4]};
    buckets to = buckets_at(of + 7);
    Py_BEGIN_ALLOW_THREADS
    decoded = decode_groups(&all, (const int64_t *)(intptr_t)of[5], of[6], &to);
    Py_END_ALLOW_THREADS
    return decoded < 0 ? PyErr_NoMemory() : PyLong_FromLongLong(decoded);
}

static PyObject *py_cumulative(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t of[10];
    int failed;
    if (!read_numbers(args, given, 10, of)) return NULL;
    buckets from = buckets_at(of);
    Py_BEGIN_ALLOW_THREADS
    failed = cumulative(&from, of[5], (const double *)(intptr_t)of[6], of[7], of[8], (double *)(intptr_t)of[9]);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *py_quantiles(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    int64_t of[11];
    if (!read_numbers(args, given, 11, of)) return NULL;
    buckets from = buckets_at(of);
    Py_BEGIN_ALLOW_THREADS
    quantiles(&from, of[5], (const double *)(intptr_t)of[6], of[7], (const double *)(intptr_t)of[8], of[9],
              (double *)(intptr_t)of[10]);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}
