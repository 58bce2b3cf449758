/* Reads a tensor block by block, in the tensor's own format. Included once, by `_kernel.c`. */

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Everything between the entry point and the data is inlined into one function per instruction set. */
#define INLINE static inline __attribute__((always_inline))

enum { COARSE_M = 3, FINEST_M = 10, FINE_BELOW = 12, FINE_COUNTERS = 1 << 16, TOP_FIELD = 2099 };
enum { BLOCK = 2048 };            /* elements: 8 kB of float32 */
enum { FINE_CODES = 1 << (FINEST_M - COARSE_M) };

/* The index of a bucket in `counts` is its code, plus NEGATIVE below zero. A float64 with exponent field e has code
   ((e + 52) << 3 | top), a float32 ((e + 948) << 3 | top). */
enum { NEGATIVE = 16384 + 512, DOUBLE_SHIFT = 52 << COARSE_M, FLOAT_SHIFT = 948 << COARSE_M };
enum { FLOAT_BUCKETS = 4096 + 272, FLOAT_NEGATIVE = 2048, BUCKETS = 2 * NEGATIVE }; /* + 272: other cache sets */

typedef uint32_t __attribute__((may_alias)) bits32;
typedef uint64_t __attribute__((may_alias)) bits64;
typedef double lanes __attribute__((vector_size(32)));
typedef int64_t lane_bits __attribute__((vector_size(32)));

static const uint64_t MAGNITUDE = 0x7fffffffffffffff, INFINITE = 0x7ff0000000000000;

/* The counters of one thread; all zero between two tensors. */
typedef struct {
    uint64_t counts[BUCKETS];
    uint32_t quick[4][FLOAT_BUCKETS]; /* four tables, so that equal neighbors do not depend on each other */
    uint64_t bytes[256];              /* one-byte formats: how often each byte occurs */
    uint64_t fine[4][FINE_BELOW][FINE_CODES];
    uint64_t seen[FINE_BELOW][FINE_CODES / 64]; /* where the first of `fine` is not zero, if that alone is in use */
} tables;

/* Formats of one byte have numbers from ONE_BYTE on and come with the value of each byte. */
enum kind { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, INT16, UINT16, INT32, UINT32, INT64, UINT64, ONE_BYTE };
enum { TWO_IN_A_BYTE = ONE_BYTE + 8, NUMBERS }; /* the one format of half a byte */
static const int SIZE[] = {4, 8, 2, 2, 2, 2, 4, 4, 8, 8, 1};

typedef struct {
    const char *address;
    int64_t count; /* of bytes, if two elements share one */
    enum kind kind;
    int two_in_a_byte;
    int normal_code;      /* code of the format's smallest normal number */
    const double *values; /* one-byte formats: the value of each byte, or of each half */
} tensor;

enum { SUM, SUM_ABS, SUM2, SUM3, SUM4, SUM8, SUMS };

typedef struct {
    int64_t zeros, nan, pos_inf, neg_inf;
    int64_t in_quick; /* elements counted in `quick` since it was last flushed */
    double sums[SUMS];
    double low, high, abs_low; /* of finite elements; abs_low of non-zero ones, INFINITY before the first */
    int quick_tables;          /* how many of `quick` are in use: one for few elements, because flushing takes longer */
    tables *tables;
} tally;

/* Buffers for a block in each of its forms. */
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

INLINE void count_four(uint32_t (*quick)[FLOAT_BUCKETS], const bits32 *bits, int quick_tables) {
    uint64_t first, second;
    memcpy(&first, bits, 8);
    memcpy(&second, bits + 2, 8);
    quick[0][first >> 52]++;
    quick[1 % quick_tables][(uint32_t)first >> 20]++;
    quick[2 % quick_tables][second >> 52]++;
    quick[3 % quick_tables][(uint32_t)second >> 20]++;
}

/* Summing and counting in one loop: they use different units of the processor. */
INLINE void add_floats(tally *t, const float *x, int n, int counting) {
    const bits32 *bits = (const bits32 *)x;
    const lanes none = {0};
    uint32_t(*quick)[FLOAT_BUCKETS] = t->tables->quick;
    lane_sums sums = {none, none, none, none, none, none};
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        add_powers(&sums, &FOUR(x + i), &FOUR(x + i + 4));
        if (counting) count_four(quick, bits + i, counting);
        if (counting) count_four(quick, bits + i + 4, counting);
    }
    add_lanes(t, &sums);
    for (; i < n; i++) {
        add_constant(t, x[i], 1.0);
        if (counting) quick[0][bits[i] >> 20]++;
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

/* Count n elements of one value; returns whether it is finite. */
INLINE int count_value(tally *t, double value, int64_t n) {
    uint64_t bits = bits_of(value), magnitude = bits & MAGNITUDE;
    if (magnitude >= INFINITE) {
        if (magnitude > INFINITE) t->nan += n;
        else if (bits >> 63) t->neg_inf += n;
        else t->pos_inf += n;
        return 0;
    }
    widen(t, value, value);
    if (magnitude == 0) {
        t->zeros += n;
        return 1;
    }
    double size = double_of(magnitude);
    t->abs_low = size < t->abs_low ? size : t->abs_low;
    t->tables->counts[(bits >> 63) * NEGATIVE + code_of(magnitude, COARSE_M)] += (uint64_t)n;
    return 1;
}

INLINE void odd_block(tally *t, double *x, int n) {
    for (int i = 0; i < n; i++)
        if (!count_value(t, x[i], 1)) x[i] = 0.0; /* adds nothing to the sums */
    add_doubles(t, x, n, 0);
}

/* Bytes are only counted here; `add_bytes` decodes them. */
INLINE void byte_block(tally *t, const uint8_t *x, int n) {
    uint32_t(*quick)[FLOAT_BUCKETS] = t->tables->quick;
    int i = 0;
    t->in_quick += n;
    for (; t->quick_tables > 1 && i + 8 <= n; i += 8) {
        uint64_t eight;
        memcpy(&eight, x + i, 8);
        for (int k = 0; k < 8; k++) quick[k & 3][eight >> (8 * k) & 255]++;
    }
    for (; i < n; i++) quick[0][x[i]]++;
}

INLINE void empty_bytes(tally *t) {
    for (int table = 0; table < t->quick_tables; table++) {
        uint32_t *quick = t->tables->quick[table];
        for (int i = 0; i < 256; i++) t->tables->bytes[i] += quick[i];
        memset(quick, 0, 256 * sizeof *quick);
    }
}

/* Turn the counts of bytes into those of halves, of which sixteen can occur. */
INLINE void split_bytes(uint64_t *bytes) {
    uint64_t halves[16] = {0};
    for (int i = 0; i < 256; i++) {
        halves[i & 15] += bytes[i];
        halves[i >> 4] += bytes[i];
    }
    memset(bytes, 0, 256 * sizeof *bytes);
    memcpy(bytes, halves, sizeof halves);
}

INLINE void add_bytes(const tensor *x, tally *t) {
    if (x->two_in_a_byte) split_bytes(t->tables->bytes);
    for (int i = 0; i < 256; i++) {
        int64_t n = (int64_t)t->tables->bytes[i];
        if (n && count_value(t, x->values[i], n)) add_constant(t, x->values[i], (double)n);
    }
}

INLINE void empty_floats(tally *t) {
    tables *s = t->tables;
    int first = 1, last = 0;
    if (t->abs_low < INFINITY) {
        first = code_of(bits_of(t->abs_low), COARSE_M) - FLOAT_SHIFT;
        last = code_of(bits_of(abs_high(t)), COARSE_M) - FLOAT_SHIFT; /* below `first` if none is a normal float32 */
        first = first < 1 ? 1 : first; /* what is no normal float32 was counted in `counts` at once */
    }
    for (int negative = 0; negative < 2; negative++) {
        uint64_t *counts = s->counts + negative * NEGATIVE + FLOAT_SHIFT;
        for (int table = 0; table < t->quick_tables; table++) {
            uint32_t *quick = s->quick[table] + negative * FLOAT_NEGATIVE;
            t->zeros += quick[0];
            quick[0] = 0;
            for (int i = first; i <= last; i++) counts[i] += quick[i];
            if (last >= first) memset(quick + first, 0, (size_t)(last - first + 1) * sizeof *quick);
        }
    }
}

/* Flush `quick` into `counts`, whose counters are wider. */
INLINE void empty_quick(const tensor *x, tally *t) {
    if (t->in_quick == 0) return;
    t->in_quick = 0;
    if (x->kind == ONE_BYTE) empty_bytes(t);
    else empty_floats(t);
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
    uint32_t low = most >> 31 ? most : least, high = positive >= 0 ? (uint32_t)positive : least;
    widen(t, float_of(low), float_of(high));
    if (tiny != UINT32_MAX) {
        double size = float_of((tiny + 1) >> 1);
        t->abs_low = size < t->abs_low ? size : t->abs_low;
    }
    t->in_quick += n;
    if (low >> 20 != high >> 20) {
        if (t->quick_tables > 1) add_floats(t, x, n, 4);
        else add_floats(t, x, n, 1);
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

/* ---- from the tensor's format to blocks of float32 or float64, exact except for 64-bit integers beyond 2**53 ---- */

INLINE int is_wide(enum kind kind) {
    return kind == FLOAT64 || kind >= INT32;
}

INLINE const void *raw_block(const tensor *x, int64_t start, int n, block_buffers *room) {
    const char *source = x->address + start * SIZE[x->kind];
    if ((uintptr_t)source % SIZE[x->kind] == 0) return source;
    memcpy(room->aligned, source, (size_t)n * SIZE[x->kind]);
    return room->aligned;
}

INLINE const double *double_values(const tensor *x, const void *raw, int n, block_buffers *room) {
    double *to = room->doubles;
    switch (x->kind) {
    case INT32: for (int i = 0; i < n; i++) to[i] = ((const int32_t *)raw)[i]; return to;
    case UINT32: for (int i = 0; i < n; i++) to[i] = ((const uint32_t *)raw)[i]; return to;
    case INT64: for (int i = 0; i < n; i++) to[i] = (double)((const int64_t *)raw)[i]; return to;
    case UINT64: for (int i = 0; i < n; i++) to[i] = (double)((const uint64_t *)raw)[i]; return to;
    default: return raw;
    }
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
    case INT16: for (int i = 0; i < n; i++) to[i] = ((const int16_t *)raw)[i]; return to;
    case UINT16: for (int i = 0; i < n; i++) to[i] = ((const uint16_t *)raw)[i]; return to;
    default: return raw;
    }
}

INLINE const double *wide_values(const tensor *x, const void *raw, int n, block_buffers *room) {
    if (is_wide(x->kind)) return double_values(x, raw, n, room);
    const float *narrow = float_values(x, raw, n, room);
    for (int i = 0; i < n; i++) room->doubles[i] = narrow[i];
    return room->doubles;
}

/* ---- the elements from `start` to `end` ---- */

INLINE int block_size(int64_t start, int64_t end) { return end - start < BLOCK ? (int)(end - start) : BLOCK; }

INLINE void walk(const tensor *x, int64_t start, int64_t end, tally *t) {
    block_buffers room;
    for (; start < end; start += BLOCK) {
        int n = block_size(start, end);
        const void *raw = raw_block(x, start, n, &room);
        if (t->in_quick > INT64_C(0xffffffff) - BLOCK) empty_quick(x, t);
        if (x->kind == ONE_BYTE) byte_block(t, raw, n);
        else if (is_wide(x->kind)) double_block(t, double_values(x, raw, n, &room), n, &room);
        else float_block(t, float_values(x, raw, n, &room), n, &room);
    }
}

/* How many tables of `fine` are in use: one if listing all would take longer than depending on one. */
INLINE int fine_copies(const tensor *x) { return x->count > 8 * BLOCK && x->kind != ONE_BYTE ? 4 : 1; }

typedef uint64_t fine_row[FINE_CODES], seen_row[FINE_CODES / 64];

/* Count n elements of one value again, finely. `owners` maps each occupied coarse bucket to its row of `fine`. */
INLINE void count_finely(double value, uint64_t n, const uint64_t *owners, int m, fine_row *fine, seen_row *seen) {
    uint64_t bits = bits_of(value), magnitude = bits & MAGNITUDE;
    if (magnitude - 1 >= INFINITE - 1) return; /* zero, infinite or NaN */
    int code = code_of(magnitude, m), at = code & ((1 << (m - COARSE_M)) - 1);
    uint64_t owner = owners[(bits >> 63) * NEGATIVE + (code >> (m - COARSE_M))];
    fine[owner][at] += n;
    if (seen) seen[owner][at >> 6] |= UINT64_C(1) << (at & 63);
}

INLINE void walk_finely(const tensor *x, int64_t start, int64_t end, const uint64_t *owners, int m, tables *to) {
    block_buffers room;
    int copies = fine_copies(x);
    for (; start < end; start += BLOCK) {
        int n = block_size(start, end), i = 0;
        const double *wide = wide_values(x, raw_block(x, start, n, &room), n, &room);
        for (; copies > 1 && i + 4 <= n; i += 4)
            for (int k = 0; k < 4; k++) count_finely(wide[i + k], 1, owners, m, to->fine[k], NULL);
        for (; i < n; i++) count_finely(wide[i], 1, owners, m, to->fine[0], to->seen);
    }
}
