/* How `_kernel.c` walks a tensor: block by block, in the tensor's own format. Included once, by it. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Everything between the entry point and the data is inlined into one function per instruction set. */
#define INLINE static inline __attribute__((always_inline))

enum { COARSE_M = 3, FINEST_M = 10, FINE_BELOW = 12, FINE_COUNTERS = 1 << 16, TOP_FIELD = 2099 };
enum { BLOCK = 2048 };            /* elements: 8 kB of float32 */
enum { FINE_CODES = 1 << (FINEST_M - COARSE_M) };
enum { RELEASE_GIL_FROM = 1 << 18 }; /* releasing for less invites threads to fight for the lock */

/* A bucket's place in `counts` is its code, plus NEGATIVE below zero. A float64 with exponent field e has code
   ((e + 52) << 3 | top), a float32 ((e + 948) << 3 | top). */
enum { NEGATIVE = 16384 + 512, DOUBLE_SHIFT = 52 << COARSE_M, FLOAT_SHIFT = 948 << COARSE_M };
enum { FLOAT_BUCKETS = 4096 + 272, FLOAT_NEGATIVE = 2048, BUCKETS = 2 * NEGATIVE }; /* + 272: other cache sets */

typedef uint32_t __attribute__((may_alias)) bits32;
typedef uint64_t __attribute__((may_alias)) bits64;
typedef double lanes __attribute__((vector_size(32)));
typedef int64_t lane_bits __attribute__((vector_size(32)));

static const uint64_t MAGNITUDE = 0x7fffffffffffffff, INFINITE = 0x7ff0000000000000;

typedef struct {
    uint64_t counts[BUCKETS];
    uint32_t quick[4][FLOAT_BUCKETS]; /* float32: four tables, so that equal neighbours need not wait for each other */
    int32_t code[BUCKETS];            /* occupied buckets, ascending */
    uint64_t in_bucket[BUCKETS];
} scratch;

enum kind { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, INT8, UINT8, INT16, INT32, INT64, BOOL, KINDS };
static const int SIZE[KINDS] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1};

typedef struct {
    const char *address;
    int64_t count;
    enum kind kind;
    int normal_code; /* code of the format's smallest normal number */
} tensor;

enum { SUM, SUM_ABS, SUM2, SUM3, SUM4, SUM8, SUMS };

typedef struct {
    int64_t zeros, nan, pos_inf, neg_inf;
    int64_t in_quick; /* elements counted in `quick` since it was last emptied */
    double sums[SUMS];
    double low, high, abs_low; /* of finite elements; abs_low of non-zero ones, INFINITY before the first */
    scratch *tables;
} tally;

/* Room for a block in each form it can take on its way. */
typedef struct {
    double doubles[BLOCK];
    float floats[BLOCK];
    char aligned[BLOCK * 8];
} block_buffers;

INLINE uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

INLINE double float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

INLINE double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

/* Unsigned code of a finite, non-zero magnitude. */
INLINE int code_of(uint64_t magnitude, int m) {
    if (magnitude >> 52) return (int)(magnitude >> (52 - m)) + (52 << m);
    int up = __builtin_clzll(magnitude) - 11; /* subnormal: move its first bit to where a normal number hides it */
    return ((53 - up) << m) | (int)((magnitude << up >> (52 - m)) & ((1u << m) - 1));
}

INLINE double abs_high(const tally *t) {
    return t->high > -t->low ? t->high : -t->low;
}

/* ---- one block ---- */

INLINE void widen(tally *t, double low, double high) {
    t->low = low < t->low ? low : t->low;
    t->high = high > t->high ? high : t->high;
}

INLINE void add_constant(tally *t, double x, double n) {
    double squared = x * x, fourth = squared * squared;
    t->sums[SUM] += n * x;
    t->sums[SUM_ABS] += n * fabs(x);
    t->sums[SUM2] += n * squared;
    t->sums[SUM3] += n * (squared * x);
    t->sums[SUM4] += n * fourth;
    t->sums[SUM8] += n * (fourth * fourth);
}

#define FOUR(x) ((lanes){(x)[0], (x)[1], (x)[2], (x)[3]})
#define SIZE_OF(x) ((lanes)((lane_bits)(x) & magnitude))

typedef struct {
    lanes sum, sum_abs, sum2, sum3, sum4, sum8;
} lane_sums;

/* Eight elements at once: adding them in pairs before they join the sums halves the chain of dependent additions. */
INLINE void add_powers(lane_sums *to, const lanes *four, const lanes *next) {
    const lane_bits magnitude = {MAGNITUDE, MAGNITUDE, MAGNITUDE, MAGNITUDE};
    lanes a = *four, b = *next, a2 = a * a, b2 = b * b, a4 = a2 * a2, b4 = b2 * b2;
    to->sum += a + b;
    to->sum_abs += SIZE_OF(a) + SIZE_OF(b);
    to->sum2 += a2 + b2;
    to->sum3 += a2 * a + b2 * b;
    to->sum4 += a4 + b4;
    to->sum8 += a4 * a4 + b4 * b4;
}

INLINE double total(const lanes *x) { return ((*x)[0] + (*x)[1]) + ((*x)[2] + (*x)[3]); }

INLINE void add_lanes(tally *t, const lane_sums *sums) {
    t->sums[SUM] += total(&sums->sum);
    t->sums[SUM_ABS] += total(&sums->sum_abs);
    t->sums[SUM2] += total(&sums->sum2);
    t->sums[SUM3] += total(&sums->sum3);
    t->sums[SUM4] += total(&sums->sum4);
    t->sums[SUM8] += total(&sums->sum8);
}

INLINE void count_four(scratch *s, const bits32 *bits) {
    uint64_t first, second;
    memcpy(&first, bits, 8);
    memcpy(&second, bits + 2, 8);
    s->quick[0][first >> 52]++;
    s->quick[1][(uint32_t)first >> 20]++;
    s->quick[2][second >> 52]++;
    s->quick[3][(uint32_t)second >> 20]++;
}

/* Summing and counting in one loop: they use different parts of the processor. */
INLINE void add_floats(tally *t, const float *x, int n, int counting) {
    const bits32 *bits = (const bits32 *)x;
    const lanes none = {0};
    lane_sums sums = {none, none, none, none, none, none};
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        add_powers(&sums, &FOUR(x + i), &FOUR(x + i + 4));
        if (counting) count_four(t->tables, bits + i);
        if (counting) count_four(t->tables, bits + i + 4);
    }
    add_lanes(t, &sums);
    for (; i < n; i++) {
        add_constant(t, x[i], 1.0);
        if (counting) t->tables->quick[i & 3][bits[i] >> 20]++;
    }
}

INLINE void add_doubles(tally *t, const double *x, int n, int counting) {
    const bits64 *bits = (const bits64 *)x;
    const lanes none = {0};
    uint64_t *counts = t->tables->counts + DOUBLE_SHIFT;
    lane_sums sums = {none, none, none, none, none, none};
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        add_powers(&sums, &FOUR(x + i), &FOUR(x + i + 4));
        if (counting) for (int k = i; k < i + 8; k++) counts[(bits[k] >> 49) + (bits[k] >> 63 << 9)]++;
    }
    add_lanes(t, &sums);
    for (; i < n; i++) {
        add_constant(t, x[i], 1.0);
        if (counting) counts[(bits[i] >> 49) + (bits[i] >> 63 << 9)]++;
    }
}

INLINE void odd_block(tally *t, double *x, int n) {
    for (int i = 0; i < n; i++) {
        uint64_t bits = bits_of(x[i]), magnitude = bits & MAGNITUDE;
        if (magnitude >= INFINITE) {
            if (magnitude > INFINITE) t->nan++;
            else if (bits >> 63) t->neg_inf++;
            else t->pos_inf++;
            x[i] = 0.0; /* adds nothing to the sums */
            continue;
        }
        widen(t, x[i], x[i]);
        if (magnitude == 0) {
            t->zeros++;
            continue;
        }
        double size = double_of(magnitude);
        t->abs_low = size < t->abs_low ? size : t->abs_low;
        t->tables->counts[(bits >> 63) * NEGATIVE + code_of(magnitude, COARSE_M)]++;
    }
    add_doubles(t, x, n, 0);
}

/* Move what `quick` holds to `counts`. */
INLINE void empty_quick(tally *t) {
    if (t->in_quick == 0) return;
    t->in_quick = 0;
    scratch *s = t->tables;
    int first = 0, last = 0;
    if (t->abs_low < INFINITY) {
        first = code_of(bits_of(t->abs_low), COARSE_M) - FLOAT_SHIFT;
        last = code_of(bits_of(abs_high(t)), COARSE_M) - FLOAT_SHIFT;
        first = first < 0 ? 0 : first; /* what is no normal float32 was counted in `counts` at once */
    }
    for (int negative = 0; negative < 2; negative++) {
        uint64_t *counts = s->counts + negative * NEGATIVE + FLOAT_SHIFT;
        for (int table = 0; table < 4; table++) {
            uint32_t *quick = s->quick[table] + negative * FLOAT_NEGATIVE;
            t->zeros += quick[0];
            quick[0] = 0;
            for (int i = first; i <= last; i++) counts[i] += quick[i];
            if (last) memset(quick + first, 0, (size_t)(last - first + 1) * sizeof *quick);
        }
    }
}

INLINE void float_block(tally *t, const float *x, int n, block_buffers *room) {
    const bits32 *bits = (const bits32 *)x;
    uint32_t most = 0, least = UINT32_MAX, tiny = UINT32_MAX;
    int32_t positive = INT32_MIN;
    for (int i = 0; i < n; i++) {
        uint32_t b = bits[i], doubled = (b << 1) - 1; /* without sign, zero beyond all others */
        most = b > most ? b : most;
        least = b < least ? b : least;
        tiny = doubled < tiny ? doubled : tiny;
        positive = (int32_t)b > positive ? (int32_t)b : positive;
    }
    if (positive >= 0x7f800000 || most >= 0xff800000u || tiny < 2u * 0x00800000u - 1u) {
        for (int i = 0; i < n; i++) room->doubles[i] = x[i];
        odd_block(t, room->doubles, n);
        return;
    }
    if (t->in_quick > INT64_C(0xffffffff) - BLOCK) empty_quick(t);
    uint32_t low = most >> 31 ? most : least, high = positive >= 0 ? (uint32_t)positive : least;
    widen(t, float_of(low), float_of(high));
    if (tiny != UINT32_MAX) {
        double size = float_of((tiny + 1) >> 1);
        t->abs_low = size < t->abs_low ? size : t->abs_low;
    }
    t->in_quick += n;
    if (low >> 20 != high >> 20) {
        add_floats(t, x, n, 1);
        return;
    }
    t->tables->quick[0][low >> 20] += (uint32_t)n;
    if (low == high) add_constant(t, float_of(low), n);
    else add_floats(t, x, n, 0);
}

INLINE void double_block(tally *t, const double *x, int n, block_buffers *room) {
    const bits64 *bits = (const bits64 *)x;
    uint64_t most = 0, least = UINT64_MAX, tiny = UINT64_MAX;
    int64_t positive = INT64_MIN;
    for (int i = 0; i < n; i++) {
        uint64_t b = bits[i], doubled = (b << 1) - 1;
        most = b > most ? b : most;
        least = b < least ? b : least;
        tiny = doubled < tiny ? doubled : tiny;
        positive = (int64_t)b > positive ? (int64_t)b : positive;
    }
    if (positive >= (int64_t)INFINITE || most >= (INFINITE | ~MAGNITUDE) || tiny < (UINT64_C(2) << 52) - 1) {
        if (x != room->doubles) memcpy(room->doubles, x, (size_t)n * 8);
        odd_block(t, room->doubles, n);
        return;
    }
    uint64_t low = most >> 63 ? most : least, high = positive >= 0 ? (uint64_t)positive : least;
    widen(t, double_of(low), double_of(high));
    if (tiny != UINT64_MAX) {
        double size = double_of((tiny + 1) >> 1);
        t->abs_low = size < t->abs_low ? size : t->abs_low;
    }
    uint64_t *counts = t->tables->counts + DOUBLE_SHIFT; /* zeros fall into the first bucket of either sign */
    uint64_t kept = counts[0], kept_negative = counts[NEGATIVE];
    if (low >> 49 != high >> 49) {
        add_doubles(t, x, n, 1);
    } else {
        counts[(low >> 49) + (low >> 63 << 9)] += (uint64_t)n;
        if (low == high) add_constant(t, double_of(low), n);
        else add_doubles(t, x, n, 0);
    }
    t->zeros += (int64_t)(counts[0] - kept + counts[NEGATIVE] - kept_negative);
    counts[0] = kept;
    counts[NEGATIVE] = kept_negative;
}

/* ---- from the tensor's format to blocks of float32 or float64, all exact but int64 beyond 2**53, which rounds ---- */

INLINE int is_wide(enum kind kind) {
    return kind == FLOAT64 || kind == INT32 || kind == INT64;
}

INLINE const void *raw_block(const tensor *x, int64_t start, int n, block_buffers *room) {
    const char *source = x->address + start * SIZE[x->kind];
    if ((uintptr_t)source % SIZE[x->kind] == 0) return source;
    memcpy(room->aligned, source, (size_t)n * SIZE[x->kind]);
    return room->aligned;
}

INLINE const double *double_values(const tensor *x, const void *raw, int n, block_buffers *room) {
    double *to = room->doubles;
    if (x->kind == FLOAT64) return raw;
    if (x->kind == INT32) for (int i = 0; i < n; i++) to[i] = ((const int32_t *)raw)[i];
    else for (int i = 0; i < n; i++) to[i] = (double)((const int64_t *)raw)[i];
    return to;
}

/* A float16's bits, moved to where float32 has its own, are the number divided by 2**112, subnormal or not. */
INLINE void halves_to_floats(const uint16_t *half, float *to, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)(half[i] & 0x7fff) << 13;
        float scaled;
        memcpy(&scaled, &bits, 4);
        scaled *= 0x1p112f;
        memcpy(&bits, &scaled, 4);
        bits |= (half[i] & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
        bits |= (uint32_t)(half[i] & 0x8000) << 16;
        memcpy(to + i, &bits, 4);
    }
}

INLINE const float *float_values(const tensor *x, const void *raw, int n, block_buffers *room) {
    float *to = room->floats;
    switch (x->kind) {
    case BFLOAT16:
        for (int i = 0; i < n; i++) ((bits32 *)to)[i] = (uint32_t)((const uint16_t *)raw)[i] << 16;
        return to;
    case FLOAT16: halves_to_floats(raw, to, n); return to;
    case INT8: for (int i = 0; i < n; i++) to[i] = ((const int8_t *)raw)[i]; return to;
    case UINT8: for (int i = 0; i < n; i++) to[i] = ((const uint8_t *)raw)[i]; return to;
    case INT16: for (int i = 0; i < n; i++) to[i] = ((const int16_t *)raw)[i]; return to;
    case BOOL: for (int i = 0; i < n; i++) to[i] = ((const uint8_t *)raw)[i] != 0; return to;
    default: return raw;
    }
}

INLINE const double *wide_values(const tensor *x, const void *raw, int n, block_buffers *room) {
    if (is_wide(x->kind)) return double_values(x, raw, n, room);
    const float *narrow = float_values(x, raw, n, room);
    for (int i = 0; i < n; i++) room->doubles[i] = narrow[i];
    return room->doubles;
}

INLINE int block_size(const tensor *x, int64_t start) {
    return x->count - start < BLOCK ? (int)(x->count - start) : BLOCK;
}

INLINE void walk(const tensor *x, tally *t) {
    block_buffers room;
    for (int64_t start = 0; start < x->count; start += BLOCK) {
        int n = block_size(x, start);
        const void *raw = raw_block(x, start, n, &room);
        if (is_wide(x->kind)) double_block(t, double_values(x, raw, n, &room), n, &room);
        else float_block(t, float_values(x, raw, n, &room), n, &room);
    }
    empty_quick(t);
}

/* The fine buckets inside a coarse one. */
typedef uint64_t fine_counts[FINE_CODES];

/* Count again, finely. `counts` must hold, at each occupied coarse bucket, the row of `fine` it owns. */
INLINE void walk_finely(const tensor *x, const uint64_t *counts, int m, fine_counts *fine) {
    block_buffers room;
    for (int64_t start = 0; start < x->count; start += BLOCK) {
        int n = block_size(x, start);
        const double *wide = wide_values(x, raw_block(x, start, n, &room), n, &room);
        for (int i = 0; i < n; i++) {
            uint64_t bits = bits_of(wide[i]), magnitude = bits & MAGNITUDE;
            if (magnitude - 1 >= INFINITE - 1) continue; /* zero, infinite or NaN */
            int code = code_of(magnitude, m);
            uint64_t owner = counts[(bits >> 63) * NEGATIVE + (code >> (m - COARSE_M))];
            fine[owner][code & ((1 << (m - COARSE_M)) - 1)]++;
        }
    }
}
