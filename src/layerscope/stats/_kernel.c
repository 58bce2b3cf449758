/* Moments and bit-counts of one tensor in one pass over memory; `summary_spec.py` defines them.

   The tensor is read in blocks that fit into the L1 cache. For each block the kernel computes the extremes in integer
   arithmetic, then the sums in float64, then the counts by leading bits. Blocks of normal numbers take this fast path;
   a block with a NaN, an infinity or a subnormal goes through `odd_block`, element by element. For formats of one byte,
   the kernel only counts bytes and derives everything from the 256 counts.

   Counts by bits go into tables in the caller's scratch memory, which are zero between two calls: the kernel reads
   only the buckets between the smallest and the largest magnitude, and clears them while it reads them. */

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "_kernel_blocks.h"
#include "_kernel_threads.h"
#include "_kernel_rows.h"
#include "_kernel_buckets.h"

/* The caller's memory for one tensor at a time. */
typedef struct {
    tables own;
    int32_t code[BUCKETS]; /* occupied buckets, ascending */
    uint64_t in_bucket[BUCKETS];
} scratch;

enum { RELEASE_GIL_FROM = 1 << 18 }; /* elements: below, threads contend for the lock */
enum { MOMENTS = 7 + SUMS + 4 };

/* Where summaries go; `Target` in `kernel.py`. */
typedef struct {
    scratch *scratch;
    const double *byte_values; /* 256 for each one-byte format */
    double *moments;
    int64_t *ends; /* end of each row's bit-counts << 4 | m, after a leading zero */
    uint8_t *bits;
    int64_t rows, row_capacity, bits_capacity;
} target;

/* ---- from tables to results ---- */

/* List the occupied buckets between two codes in the order of their values, and clear them. */
static int list_buckets(scratch *s, const tally *t) {
    if (t->abs_low == INFINITY) return 0;
    int n = 0, first = code_of(bits_of(t->abs_low), COARSE_M);
    if (t->low < 0) {
        for (int code = code_of(bits_of(-t->low), COARSE_M); code >= first; code--) {
            uint64_t *counter = s->own.counts + NEGATIVE + code;
            s->code[n] = -code;
            s->in_bucket[n] = *counter;
            n += *counter != 0;
            *counter = 0;
        }
    }
    if (t->high > 0) {
        int last = code_of(bits_of(t->high), COARSE_M);
        for (int code = first; code <= last; code++) {
            uint64_t *counter = s->own.counts + code;
            s->code[n] = code;
            s->in_bucket[n] = *counter;
            n += *counter != 0;
            *counter = 0;
        }
    }
    return n;
}

static int fine_m(const tally *t) {
    int first = code_of(bits_of(t->abs_low), 0), last = code_of(bits_of(abs_high(t)), 0), m = FINEST_M;
    while (m > COARSE_M && (int64_t)(last - first + 1) << m > FINE_COUNTERS) m--;
    return m;
}

static uint64_t *place_of(tables *t, int code) {
    return code < 0 ? t->counts + NEGATIVE - code : t->counts + code;
}

/* Number of elements in one fine bucket, which is cleared. */
static uint64_t take_fine(tables *t, int k, int at, int copies) {
    uint64_t n = 0;
    for (int copy = 0; copy < copies; copy++) {
        n += t->fine[copy][k][at];
        t->fine[copy][k][at] = 0;
    }
    return n;
}

/* List the fine buckets inside the k-th coarse one after those listed, and clear them. */
static int list_fine(scratch *s, int k, int coarse, int m, int copies, int listed) {
    int negative = coarse < 0, base = abs(coarse) << (m - COARSE_M);
    for (int half = 0; half < 2; half++) {
        int word = negative ? 1 - half : half;
        uint64_t left = copies > 1 ? UINT64_MAX : s->own.seen[k][word];
        s->own.seen[k][word] = 0;
        while (left) {
            int bit = negative ? 63 - __builtin_clzll(left) : __builtin_ctzll(left), at = 64 * word + bit;
            left ^= UINT64_C(1) << bit;
            s->code[listed] = negative ? -(base + at) : base + at;
            s->in_bucket[listed] = take_fine(&s->own, k, at, copies);
            listed += s->in_bucket[listed] != 0;
        }
    }
    return listed;
}

/* Replace the few coarse buckets listed by the fine ones inside them. */
static int refine(const tensor *x, scratch *s, int n, int m, int threads) {
    int coarse[FINE_BELOW], listed = 0, copies = fine_copies(x);
    for (int k = 0; k < n; k++) *place_of(&s->own, coarse[k] = s->code[k]) = (uint64_t)k;
    if (x->kind == ONE_BYTE) {
        for (int i = 0; i < 256; i++)
            count_finely(s->own.bytes[i] ? x->values[i] : 0.0, s->own.bytes[i], s->own.counts, m, s->own.fine[0],
                         s->own.seen);
    } else {
        work again;
        tally unused = empty_tally(x, &s->own);
        begin(&again, x, s->own.counts, m);
        work_together(&again, &unused, threads);
    }
    for (int k = 0; k < n; k++) *place_of(&s->own, coarse[k]) = 0;
    for (int k = 0; k < n; k++) listed = list_fine(s, k, coarse[k], m, copies, listed);
    return listed;
}

static uint8_t *put_number(uint8_t *to, uint64_t number) {
    for (; number > 0x7f; number >>= 7) *to++ = (uint8_t)(number | 0x80);
    *to++ = (uint8_t)number;
    return to;
}

static uint8_t *encode(uint8_t *to, const scratch *s, int n, int m) {
    int before = -((TOP_FIELD << m) + 1);
    for (int k = 0; k < n; k++) {
        to = put_number(to, (uint64_t)(s->code[k] - before));
        before = s->code[k];
    }
    for (int k = 0; k < n; k++) to = put_number(to, s->in_bucket[k]);
    return to;
}

static void write_moments(const tensor *x, const tally *t, int64_t subnormal, double *to) {
    int64_t count = x->count << x->two_in_a_byte, finite = count - t->nan - t->pos_inf - t->neg_inf;
    const int64_t counted[] = {count, finite, t->zeros, subnormal, t->nan, t->pos_inf, t->neg_inf};
    for (int k = 0; k < 7; k++) *to++ = (double)counted[k];
    for (int k = 0; k < SUMS; k++) *to++ = t->sums[k];
    *to++ = finite ? t->low + 0.0 : NAN; /* + 0.0: a negative zero is a zero */
    *to++ = finite ? t->high + 0.0 : NAN;
    *to++ = t->abs_low < INFINITY ? t->abs_low : NAN;
    *to = finite ? abs_high(t) + 0.0 : NAN;
}

/* The summary of one tensor: bytes written << 4 | m. */
static int64_t summary(const tensor *x, scratch *s, double *moments, uint8_t *bits, int threads) {
    work shared;
    tally t = empty_tally(x, &s->own);
    begin(&shared, x, NULL, 0);
    work_together(&shared, &t, threads);
    memset(t.sums, 0, sizeof t.sums);
    for (int k = 0; k < shared.chunks; k++)
        for (int i = 0; i < SUMS; i++) t.sums[i] += shared.sums[k][i];
    if (x->kind == ONE_BYTE) add_bytes(x, &t);
    int n = list_buckets(s, &t), m = COARSE_M;
    int64_t subnormal = 0;
    for (int k = 0; k < n; k++)
        if (abs(s->code[k]) < x->normal_code) subnormal += (int64_t)s->in_bucket[k];
    if (n > 0 && n < FINE_BELOW) {
        m = fine_m(&t);
        int only = code_of(bits_of(t.abs_low), m);
        if (t.abs_low != abs_high(&t)) n = refine(x, s, n, m, threads);
        else for (int k = 0; k < n; k++) s->code[k] = s->code[k] < 0 ? -only : only;
    }
    if (x->kind == ONE_BYTE) memset(s->own.bytes, 0, sizeof s->own.bytes);
    write_moments(x, &t, subnormal, moments);
    return (int64_t)(encode(bits, s, n, m) - bits) << 4 | m;
}

/* Most bytes the bit-counts of a tensor can take: gaps of at most four, counts of at most nine. */
static int64_t most_bytes(const tensor *x) {
    const int64_t buckets = 2 * (TOP_FIELD << COARSE_M);
    return (x->count < buckets / 2 ? 2 * x->count : buckets) * 13;
}

/* Summarize the tensors, one row each, until all are done or the target is full. */
static void fill_rows(const tensor *x, Py_ssize_t tensors, target *to, int threads) {
    uint64_t rules = set_rules(DEFAULT_RULES);
    for (; tensors-- && to->rows < to->row_capacity; x++) {
        int64_t used = to->ends[to->rows] >> 4;
        if (used + most_bytes(x) > to->bits_capacity) break;
        int64_t packed = summary(x, to->scratch, to->moments + to->rows * MOMENTS, to->bits + used, threads);
        to->ends[++to->rows] = (used << 4) + packed;
    }
    set_rules(rules);
}

static void fill_numbers(const tensor *x, int64_t rows, double *to, double *over) {
    uint64_t rules = set_rules(DEFAULT_RULES);
    best_rows(x, rows, to);
    over_rows(to, rows, over);
    set_rules(rules);
}

/* Destinations of everything computed of a tensor besides its summary. */
typedef struct {
    int64_t rows;
    double *numbers, *over;
    char *copy; /* of its beginning */
    size_t bytes;
} beside;

/* Compute all of it, unless the target is full. */
static void fill_all(const tensor *x, target *to, int threads, const beside *rest) {
    int64_t before = to->rows;
    fill_rows(x, 1, to, threads);
    if (to->rows == before) return;
    if (rest->rows) fill_numbers(x, rest->rows, rest->numbers, rest->over);
    if (rest->bytes) memcpy(rest->copy, x->address, rest->bytes);
}

/* ---- Python ---- */

static int64_t number_at(PyObject *plan, Py_ssize_t index) {
    return PyLong_AsLongLong(PyList_GetItem(plan, index));
}

/* Parse the tensors of the plan; returns their total number of elements, or -1 with an error set. */
static int64_t read_plan(PyObject *plan, Py_ssize_t tensors, const target *to, tensor *x) {
    int64_t elements = 0;
    for (Py_ssize_t i = 0; i < tensors; i++, x++) {
        int64_t address = number_at(plan, 3 * i), count = number_at(plan, 3 * i + 1), format = number_at(plan, 3 * i + 2);
        if (PyErr_Occurred()) return -1;
        int number = (int)(format & 0xff), one_byte = number >= ONE_BYTE;
        if (count < 0 || format < 0 || number >= NUMBERS) {
            PyErr_Format(PyExc_ValueError, "no tensor has %lld elements of format %lld", (long long)count,
                         (long long)format);
            return -1;
        }
        *x = (tensor){(const char *)(intptr_t)address, count, one_byte ? ONE_BYTE : (enum kind)number,
                      number == TWO_IN_A_BYTE, (int)(format >> 8) << COARSE_M,
                      one_byte ? to->byte_values + 256 * (number - ONE_BYTE) : NULL};
        elements += count;
    }
    return elements;
}

static PyObject *summarize(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 3 || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "summarize takes a list and two numbers");
    Py_ssize_t tensors = PyList_Size(args[0]) / 3;
    target *to = PyLong_AsVoidPtr(args[1]);
    long threads = PyLong_AsLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    tensor few[8], *x = tensors <= 8 ? few : PyMem_Malloc((size_t)tensors * sizeof *x);
    if (x == NULL) return PyErr_NoMemory();
    int64_t elements = read_plan(args[0], tensors, to, x);
    if (elements >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        fill_rows(x, tensors, to, threads < MOST_THREADS ? (int)threads : MOST_THREADS);
        Py_END_ALLOW_THREADS
    } else if (elements >= 0) {
        fill_rows(x, tensors, to, 1);
    }
    if (x != few) PyMem_Free(x);
    return elements < 0 ? NULL : PyLong_FromLongLong(to->rows);
}

static PyObject *rows(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 6) return PyErr_Format(PyExc_TypeError, "rows takes six numbers");
    const char *address = PyLong_AsVoidPtr(args[0]);
    int64_t count = PyLong_AsLongLong(args[1]), format = PyLong_AsLongLong(args[2]), number = PyLong_AsLongLong(args[3]);
    double *to = PyLong_AsVoidPtr(args[4]), *over = PyLong_AsVoidPtr(args[5]);
    if (PyErr_Occurred()) return NULL;
    if (count < 0 || number < 0 || (format & 0xff) >= ONE_BYTE)
        return PyErr_Format(PyExc_ValueError, "no matrix has %lld rows of format %lld", (long long)number,
                            (long long)format);
    tensor x = {address, count, (enum kind)(format & 0xff), 0, 0, NULL};
    if (count >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        fill_numbers(&x, number, to, over);
        Py_END_ALLOW_THREADS
    } else {
        fill_numbers(&x, number, to, over);
    }
    Py_RETURN_NONE;
}

static PyObject *take(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 8 || !PyList_Check(args[0])) return PyErr_Format(PyExc_TypeError, "take takes a list and seven numbers");
    target *to = PyLong_AsVoidPtr(args[1]);
    long threads = PyLong_AsLong(args[2]);
    beside rest = {PyLong_AsLongLong(args[3]), PyLong_AsVoidPtr(args[4]), PyLong_AsVoidPtr(args[5]),
                   PyLong_AsVoidPtr(args[6]), PyLong_AsSize_t(args[7])};
    tensor x;
    if (PyErr_Occurred() || read_plan(args[0], 1, to, &x) < 0) return NULL;
    if (rest.rows && x.kind == ONE_BYTE) return PyErr_Format(PyExc_ValueError, "rows of bytes are not read");
    if (x.count >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        fill_all(&x, to, threads < MOST_THREADS ? (int)threads : MOST_THREADS, &rest);
        Py_END_ALLOW_THREADS
    } else {
        fill_all(&x, to, 1, &rest);
    }
    return PyLong_FromLongLong(to->rows);
}

static PyMethodDef methods[] = {
    {"decode", (PyCFunction)(void (*)(void))py_decode, METH_FASTCALL,
     "decode(m, offsets, encoded, smallest, largest, starts, groups, row, low, high, counts, exponent) -> buckets"},
    {"cumulative", (PyCFunction)(void (*)(void))py_cumulative, METH_FASTCALL,
     "cumulative(row, low, high, counts, exponent, buckets, edges, number of edges, rows, to)"},
    {"quantiles", (PyCFunction)(void (*)(void))py_quantiles, METH_FASTCALL,
     "quantiles(row, low, high, counts, exponent, buckets, zeros, rows, shares, number of shares, to)"},
    {"rows", (PyCFunction)(void (*)(void))rows, METH_FASTCALL,
     "rows(address, count, format, rows, to, over)\n\n"
     "Mean, mean magnitude, standard deviation and largest magnitude of each, and these over all rows."},
    {"take", (PyCFunction)(void (*)(void))take, METH_FASTCALL,
     "take([address, count, format], target, threads, rows, numbers, over, copy, bytes) -> rows in the target\n\n"
     "What summarize and rows do, and a copy of the first bytes."},
    {"summarize", (PyCFunction)(void (*)(void))summarize, METH_FASTCALL,
     "summarize([address, count, format, ...], target, threads) -> rows in the target\n\n"
     "format is the number of the storage type, plus 256 times the exponent field of its smallest normal number."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    choose_instructions();
    choose_rows();
    return PyModule_AddIntConstant(module, "SCRATCH_BYTES", sizeof(scratch));
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_kernel", .m_methods = methods,
                                        .m_slots = slots};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
