/* Moments and bit-counts of one tensor in one pass over memory; `spec.py` says what they are.

   The tensor is walked in blocks that stay in the first-level cache. Each block is looked at for its extremes
   in integer arithmetic, then summed in float64, then counted by its leading bits. Blocks of ordinary numbers
   take that fast path; a block with a NaN, an infinity or a subnormal goes through `odd_block`, element by element.

   Counts by bits go into tables of the caller's scratch memory, which are all zero between two calls: only the
   buckets between the smallest and the largest magnitude are read, and cleared while they are read. */

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "_kernel_blocks.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef void walker(const tensor *, tally *);
typedef void fine_walker(const tensor *, const uint64_t *, int, fine_counts *);

__attribute__((noinline)) static void walk_plain(const tensor *x, tally *t) { walk(x, t); }
__attribute__((noinline)) static void walk_finely_plain(const tensor *x, const uint64_t *counts, int m,
                                                        fine_counts *fine) {
    walk_finely(x, counts, m, fine);
}

#if defined(__x86_64__) && !defined(PORTABLE) /* PORTABLE: for testing what other processors run */
#define AVX2 __attribute__((noinline, target("avx2,fma,bmi2")))
AVX2 static void walk_avx2(const tensor *x, tally *t) { walk(x, t); }
AVX2 static void walk_finely_avx2(const tensor *x, const uint64_t *counts, int m, fine_counts *fine) {
    walk_finely(x, counts, m, fine);
}
#endif

static walker *best_walk = walk_plain;
static fine_walker *best_walk_finely = walk_finely_plain;

static void choose_instructions(void) {
#ifdef AVX2
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
        best_walk = walk_avx2;
        best_walk_finely = walk_finely_avx2;
    }
#endif
}

/* ---- from tables to results ---- */

/* List the occupied buckets between two codes in the order of their values, and clear them. */
static int list_buckets(scratch *s, const tally *t) {
    if (t->abs_low == INFINITY) return 0;
    int n = 0, first = code_of(bits_of(t->abs_low), COARSE_M);
    if (t->low < 0) {
        for (int code = code_of(bits_of(-t->low), COARSE_M); code >= first; code--) {
            uint64_t *place = s->counts + NEGATIVE + code;
            s->code[n] = -code;
            s->in_bucket[n] = *place;
            n += *place != 0;
            *place = 0;
        }
    }
    if (t->high > 0) {
        int last = code_of(bits_of(t->high), COARSE_M);
        for (int code = first; code <= last; code++) {
            uint64_t *place = s->counts + code;
            s->code[n] = code;
            s->in_bucket[n] = *place;
            n += *place != 0;
            *place = 0;
        }
    }
    return n;
}

static int fine_m(const tally *t) {
    int first = code_of(bits_of(t->abs_low), 0), last = code_of(bits_of(abs_high(t)), 0), m = FINEST_M;
    while (m > COARSE_M && (int64_t)(last - first + 1) << m > FINE_COUNTERS) m--;
    return m;
}

static uint64_t *place_of(scratch *s, int code) {
    return code < 0 ? s->counts + NEGATIVE - code : s->counts + code;
}

/* Replace the few coarse buckets listed by the fine ones inside them. */
static int refine(const tensor *x, scratch *s, int n, int m) {
    fine_counts fine[FINE_BELOW];
    int coarse[FINE_BELOW], width = 1 << (m - COARSE_M), occupied = 0;
    memset(fine, 0, (size_t)n * sizeof *fine);
    for (int k = 0; k < n; k++) *place_of(s, coarse[k] = s->code[k]) = (uint64_t)k;
    best_walk_finely(x, s->counts, m, fine);
    for (int k = 0; k < n; k++) {
        *place_of(s, coarse[k]) = 0;
        int negative = coarse[k] < 0, base = (negative ? -coarse[k] : coarse[k]) << (m - COARSE_M);
        for (int i = 0; i < width; i++) {
            int low_bits = negative ? width - 1 - i : i;
            s->code[occupied] = negative ? -(base + low_bits) : base + low_bits;
            s->in_bucket[occupied] = fine[k][low_bits];
            occupied += s->in_bucket[occupied] != 0;
        }
    }
    return occupied;
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
    int64_t finite = x->count - t->nan - t->pos_inf - t->neg_inf;
    const int64_t counted[] = {x->count, finite, t->zeros, subnormal, t->nan, t->pos_inf, t->neg_inf};
    for (int k = 0; k < 7; k++) *to++ = (double)counted[k];
    for (int k = 0; k < SUMS; k++) *to++ = t->sums[k];
    *to++ = finite ? t->low + 0.0 : NAN; /* + 0.0: a negative zero is a zero */
    *to++ = finite ? t->high + 0.0 : NAN;
    *to++ = t->abs_low < INFINITY ? t->abs_low : NAN;
    *to = finite ? abs_high(t) + 0.0 : NAN;
}

/* The summary itself: bytes written << 4 | m. */
__attribute__((noinline)) static int64_t summary(const tensor *x, scratch *s, double *moments, uint8_t *bits) {
    tally t = {.low = INFINITY, .high = -INFINITY, .abs_low = INFINITY, .tables = s};
    best_walk(x, &t);
    int n = list_buckets(s, &t), m = COARSE_M;
    int64_t subnormal = 0;
    for (int k = 0; k < n; k++)
        if (s->code[k] < x->normal_code && -s->code[k] < x->normal_code) subnormal += (int64_t)s->in_bucket[k];
    if (n > 0 && n < FINE_BELOW) {
        m = fine_m(&t);
        int only = code_of(bits_of(t.abs_low), m);
        if (t.abs_low != abs_high(&t)) n = refine(x, s, n, m);
        else for (int k = 0; k < n; k++) s->code[k] = s->code[k] < 0 ? -only : only;
    }
    write_moments(x, &t, subnormal, moments);
    return (int64_t)(encode(bits, s, n, m) - bits) << 4 | m;
}

/* Subnormals must count whatever the process does with them, so the summary runs under the default rules of
   floating-point arithmetic; the thread's own are put back. */
static int64_t summary_by_default_rules(const tensor *x, scratch *s, double *moments, uint8_t *bits) {
#if defined(__x86_64__)
    unsigned int rules = _mm_getcsr();
    _mm_setcsr(0x1f80);
    int64_t result = summary(x, s, moments, bits);
    _mm_setcsr(rules);
#elif defined(__aarch64__)
    uint64_t rules;
    __asm__ volatile("mrs %0, fpcr" : "=r"(rules));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0) : "memory");
    int64_t result = summary(x, s, moments, bits);
    __asm__ volatile("msr fpcr, %0" : : "r"(rules) : "memory");
#else
    int64_t result = summary(x, s, moments, bits);
#endif
    return result;
}

/* ---- Python ---- */

static PyObject *summarize(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    (void)module;
    if (given != 6) return PyErr_Format(PyExc_TypeError, "summarize takes 6 arguments, not %zd", given);
    void *address = PyLong_AsVoidPtr(args[0]);
    long long count = PyLong_AsLongLong(args[1]);
    long format = PyLong_AsLong(args[2]);
    scratch *tables = PyLong_AsVoidPtr(args[3]);
    double *moments = PyLong_AsVoidPtr(args[4]);
    uint8_t *bits = PyLong_AsVoidPtr(args[5]);
    if (PyErr_Occurred()) return NULL;
    if (count < 0 || format < 0 || (format & 0xff) >= KINDS)
        return PyErr_Format(PyExc_ValueError, "no tensor has %lld elements of format %ld", count, format);
    tensor x = {address, count, (enum kind)(format & 0xff), (int)(format >> 8) << COARSE_M};
    int64_t result;
    if (count >= RELEASE_GIL_FROM) {
        Py_BEGIN_ALLOW_THREADS
        result = summary_by_default_rules(&x, tables, moments, bits);
        Py_END_ALLOW_THREADS
    } else {
        result = summary_by_default_rules(&x, tables, moments, bits);
    }
    return PyLong_FromLongLong(result);
}

static PyMethodDef methods[] = {
    {"summarize", (PyCFunction)(void (*)(void))summarize, METH_FASTCALL,
     "summarize(address, count, format, scratch, moments, bits) -> bytes written << 4 | m\n\n"
     "format is the number of the storage type, plus 256 times the exponent field of its smallest normal number."},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module) {
    choose_instructions();
    return PyModule_AddIntConstant(module, "SCRATCH_BYTES", sizeof(scratch));
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_kernel", .m_methods = methods,
                                        .m_slots = slots};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&definition); }
