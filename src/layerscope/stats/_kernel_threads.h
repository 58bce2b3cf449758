/* Shares a tensor among threads. Included once, by `_kernel.c`.

   A tensor is split into chunks by its size alone. The sums of the chunks are added in the order of the chunks, and
   everything else is integers and extremes: the result is bit-identical for any number of threads.

   Threads are started per tensor, so that nothing has to survive a fork. On a busy machine a thread may start after all
   chunks are done, and waiting for it would take longer than the work: it finds the team closed and exits, and only
   touches the team's memory, which the last thread frees. */

#include <stdlib.h>
#if __has_include(<pthread.h>) && !defined(WITHOUT_THREADS) /* WITHOUT_THREADS: to test what other systems run */
#include <pthread.h>
#define WITH_THREADS
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { MOST_CHUNKS = 64, LEAST_CHUNK = 1 << 16, MOST_THREADS = 16 };
enum { THREADS_FROM = 1 << 20 }; /* elements: below, threads take longer to start than to count */
enum { FEW = 512 };       /* elements: below, flushing four tables takes longer than depending on one */

typedef struct {
    const tensor *x;
    int64_t chunk; /* elements of each but the last */
    int chunks, next, m;
    const uint64_t *owners; /* the coarse bucket's row in `fine`; NULL when counting for the first time */
    double sums[MOST_CHUNKS][SUMS];
} work;

typedef struct {
    work *shared;
    tally t;
} worker;

INLINE int next_chunk(work *shared) { return __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED); }

/* Process chunks until none is left. */
INLINE void walk_chunks(worker *w) {
    work *shared = w->shared;
    const tensor *x = shared->x;
    for (int k; (k = next_chunk(shared)) < shared->chunks;) {
        int64_t start = k * shared->chunk, end = x->count - start > shared->chunk ? start + shared->chunk : x->count;
        if (shared->owners) {
            walk_finely(x, start, end, shared->owners, shared->m, w->t.tables);
            continue;
        }
        memset(w->t.sums, 0, sizeof w->t.sums);
        walk(x, start, end, &w->t);
        memcpy(shared->sums[k], w->t.sums, sizeof w->t.sums);
    }
    empty_quick(x, &w->t);
}

__attribute__((noinline)) static void walk_plain(worker *w) { walk_chunks(w); }
static void (*best_walk)(worker *) = walk_plain;

#if defined(__x86_64__) && !defined(PORTABLE) /* PORTABLE: to test what other processors run */
__attribute__((noinline, target("avx2,fma,bmi2"))) static void walk_avx2(worker *w) { walk_chunks(w); }
#define AVX2
#endif

static void choose_instructions(void) {
#ifdef AVX2
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        best_walk = walk_avx2;
#endif
}

/* Subnormals must count even if the process flushes them to zero, so summaries use the default floating-point mode.
   Returns the previous mode, to be restored. */
static uint64_t set_rules(uint64_t rules) {
    uint64_t before = 0;
#if defined(__x86_64__)
    before = _mm_getcsr();
    _mm_setcsr((unsigned int)rules);
#elif defined(__aarch64__)
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(rules) : "memory");
#endif
    (void)rules;
    return before;
}

#if defined(__x86_64__)
enum { DEFAULT_RULES = 0x1f80 };
#else
enum { DEFAULT_RULES = 0 };
#endif

/* Fresh work on a tensor; `owners` as in `work`. */
static void begin(work *shared, const tensor *x, const uint64_t *owners, int m) {
    int64_t chunk = (x->count / MOST_CHUNKS / BLOCK + 1) * BLOCK;
    shared->x = x;
    shared->chunk = chunk < LEAST_CHUNK ? LEAST_CHUNK : chunk;
    shared->chunks = (int)((x->count + shared->chunk - 1) / shared->chunk);
    shared->next = 0;
    shared->owners = owners;
    shared->m = m;
}

static tally empty_tally(const tensor *x, tables *to) {
    return (tally){.low = INFINITY, .high = -INFINITY, .abs_low = INFINITY, .quick_tables = x->count < FEW ? 1 : 4,
                   .tables = to};
}

#ifdef WITH_THREADS

static void merge_counts(tally *into, const tally *from) {
    into->zeros += from->zeros;
    into->nan += from->nan;
    into->pos_inf += from->pos_inf;
    into->neg_inf += from->neg_inf;
    widen(into, from->low, from->high);
    into->abs_low = from->abs_low < into->abs_low ? from->abs_low : into->abs_low;
    for (int i = 0; i < 256; i++) into->tables->bytes[i] += from->tables->bytes[i];
    if (from->abs_low == INFINITY) return;
    int first = code_of(bits_of(from->abs_low), COARSE_M), last = code_of(bits_of(abs_high(from)), COARSE_M);
    for (int negative = 0; negative < 2; negative++)
        for (int i = negative * NEGATIVE + first; i <= negative * NEGATIVE + last; i++)
            into->tables->counts[i] += from->tables->counts[i];
}

static void merge_fine(tables *into, const tables *from) {
    uint64_t *to = into->fine[0][0];
    const uint64_t *more = from->fine[0][0];
    for (size_t i = 0; i < sizeof into->fine / sizeof *to; i++) to[i] += more[i];
}

typedef struct team team;

typedef struct {
    team *team;
    int began;
    worker worker;
    tables tables;
} helper;

struct team {
    pthread_mutex_t lock;
    pthread_cond_t one_left;
    int closed, at_work, holders; /* holders: of this memory */
    helper helpers[];
};

static void leave(team *team) { /* with the lock held */
    int last = --team->holders == 0;
    pthread_mutex_unlock(&team->lock);
    if (!last) return;
    pthread_cond_destroy(&team->one_left);
    pthread_mutex_destroy(&team->lock);
    free(team);
}

static void *help(void *given) {
    helper *self = given;
    team *team = self->team;
    pthread_mutex_lock(&team->lock);
    if (!team->closed) {
        self->began = 1;
        team->at_work++;
        pthread_mutex_unlock(&team->lock);
        set_rules(DEFAULT_RULES);
        best_walk(&self->worker);
        pthread_mutex_lock(&team->lock);
        team->at_work--;
        pthread_cond_signal(&team->one_left);
    }
    leave(team);
    return NULL;
}

/* A team with its helper threads; without helpers if the system starts no thread, NULL without memory. */
static team *gather(work *shared, int helpers) {
    team *made = calloc(1, sizeof *made + (size_t)helpers * sizeof(helper)); /* untouched pages take no memory */
    if (made == NULL) return NULL;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->one_left, NULL);
    pthread_mutex_lock(&made->lock);
    made->holders = 1;
    for (helper *one = made->helpers; one < made->helpers + helpers; one++) {
        pthread_t thread;
        one->team = made;
        one->worker = (worker){shared, empty_tally(shared->x, &one->tables)};
        if (pthread_create(&thread, NULL, help, one) != 0) break;
        pthread_detach(thread);
        made->holders++;
    }
    pthread_mutex_unlock(&made->lock);
    return made;
}

/* Do the work with up to `threads` threads, and gather their counts in `own`. */
static void work_together(work *shared, tally *own, int threads) {
    worker self = {shared, *own};
    int helpers = (threads < shared->chunks ? threads : shared->chunks) - 1;
    team *team = helpers > 0 && shared->x->count >= THREADS_FROM ? gather(shared, helpers) : NULL;
    best_walk(&self);
    *own = self.t;
    if (team == NULL) return;
    pthread_mutex_lock(&team->lock);
    team->closed = 1;
    while (team->at_work) pthread_cond_wait(&team->one_left, &team->lock);
    for (helper *one = team->helpers; one < team->helpers + helpers; one++) {
        if (!one->began) continue;
        if (shared->owners) merge_fine(own->tables, &one->tables);
        else merge_counts(own, &one->worker.t);
    }
    leave(team);
}

#else

static void work_together(work *shared, tally *own, int threads) {
    worker alone = {shared, *own};
    (void)threads;
    best_walk(&alone);
    *own = alone.t;
}

#endif
