/* Two processes (ranks) that sleep until they are told what to measure over LINK, a header beside this file.
 *
 *   team SOCKET CORE0 CORE1
 *
 * Each connects to SOCKET, says "rank R", and then reads orders, one per line: TEST BYTES COUNT WINDOW PERIOD_US.
 * It answers each with one line of figures. Between orders it sleeps in read(), so that it is in nobody's way.
 * Buffers are rewritten before each send, and every byte is read and checked by its sum after each receive, inside the
 * measured time. What was written and read is reported, so that the two sides can be compared.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include LINK

/* A rank that hangs ends itself. */
enum { ORDER_SECONDS = 25, END_SECONDS = 5 };
/* How far the source of the messages shifts before it repeats. */
enum { SHIFT = 4096 };
/* The most messages under way, and the most bytes of them. */
enum { SLOTS = 64, SLOT_BYTES = 512 << 10 };

/* What a message is. */
enum { DATA = 1, ANSWER = 2, MEET = 3 };

/* Bytes written and read, and the sums of their words. */
static uint64_t written_bytes, written_sum, read_bytes, read_sum;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t cpu_ns(void) {
    struct timespec t;
    struct rusage u;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    getrusage(RUSAGE_SELF, &u);
    return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000u +
           (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000u;
}

static void fail(const char *why) {
    fprintf(stderr, "rank %d: %s\n", rank, why);
    link_fail();
    exit(1);
}

static char *room(size_t bytes) {
    char *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!p) fail("no memory");
    memset(p, 1, bytes);
    return p;
}

/* The sum of the source's words before each of them. */
static uint64_t *sums;

/* What eight bytes that begin at `at` add to the sum of the words of their message. */
static uint64_t placed(const char *from, size_t at) {
    uint64_t word;
    unsigned bits = 8 * (unsigned)(at % 8);
    memcpy(&word, from, 8);
    return bits ? (word << bits) + (word >> (64 - bits)) : word;
}

/* The last, incomplete word. */
static uint64_t tail(const char *buf, size_t bytes) {
    uint64_t word = 0;
    memcpy(&word, buf + bytes / 8 * 8, bytes % 8);
    return word;
}

/* The sum of message `number`. */
static uint64_t expected(const char *source, size_t bytes, uint64_t number) {
    const char *message = source + number * 8 % SHIFT, *stamp = (const char *)&number;
    size_t first = number * 8 % SHIFT / 8;
    if (bytes < 8) return tail(stamp, bytes);
    uint64_t sum = sums[first + bytes / 8] - sums[first] + tail(message, bytes);
    sum += placed(stamp, 0) - placed(message, 0);
    if (bytes >= 16) sum += placed(stamp, bytes - 8) - placed(message + bytes - 8, bytes - 8);
    return sum;
}

/* Message `number` of `bytes`: its number at both ends, and bytes that shift in between. */
static void rewrite(char *buf, const char *source, size_t bytes, uint64_t number) {
    memcpy(buf, source + number * 8 % SHIFT, bytes);
    memcpy(buf, &number, bytes < 8 ? bytes : 8);
    if (bytes >= 16) memcpy(buf + bytes - 8, &number, 8);
    written_bytes += bytes;
    written_sum += expected(source, bytes, number);
}

static void read_out(const char *buf, const char *source, size_t bytes, uint64_t number) {
    uint64_t sum = tail(buf, bytes), word;
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        memcpy(&word, buf + i, 8);
        sum += word;
    }
    if (memcmp(buf, &number, bytes < 8 ? bytes : 8) || (bytes >= 16 && memcmp(buf + bytes - 8, &number, 8)) ||
        sum != expected(source, bytes, number))
        fail("what came is not what was sent");
    read_bytes += bytes;
    read_sum += sum;
}

/* Returns when the other side has come here too. */
static void meet(void) {
    char byte = 0;
    if (rank == 0) {
        link_send(&byte, 1, MEET);
        link_receive(&byte, 1, MEET);
    } else {
        link_receive(&byte, 1, MEET);
        link_send(&byte, 1, MEET);
    }
}

struct buffers {
    char *source, *out, *in;
    size_t bytes;
};

static void send_one(struct buffers *b, uint64_t number) {
    rewrite(b->out, b->source, b->bytes, number);
    link_send(b->out, b->bytes, DATA);
}

static void receive_one(struct buffers *b, uint64_t number) {
    link_receive(b->in, b->bytes, DATA);
    read_out(b->in, b->source, b->bytes, number);
}

/* Back and forth; with a period, one message per so many microseconds. Its time counts from when it was due, and what
 * falls due while one is stuck counts as stuck with it. */
static void ping_pong(struct buffers *b, uint64_t count, uint64_t period_us, uint64_t *samples) {
    uint64_t period = period_us * 1000, start = now_ns(), taken = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (rank == 1) {
            receive_one(b, i);
            send_one(b, i);
            continue;
        }
        if (!period) start = now_ns();
        while (now_ns() < start) {}
        send_one(b, i);
        receive_one(b, i);
        uint64_t took = now_ns() - start;
        for (;; took -= period) {
            if (taken < count) samples[taken++] = took;
            start += period;
            if (!period || took <= period) break;
        }
    }
}

/* One way, blocking calls: for messages that the library takes at once. */
static void stream_small(struct buffers *b, uint64_t count, uint64_t window) {
    uint64_t answer = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (rank == 0) send_one(b, i);
        else receive_one(b, i);
        if ((window && (i + 1) % window == 0) || i + 1 == count) {
            if (rank == 0) link_receive(&answer, 8, ANSWER);
            else link_send(&answer, 8, ANSWER);
        }
    }
}

/* One way, several under way: each slot is rewritten, or read out and posted again, as soon as it is free. */
static void stream_large(struct buffers *b, uint64_t count, int slots) {
    link_request requests[SLOTS];
    char *buffer[SLOTS];
    uint64_t answer = 0;
    for (int s = 0; s < slots; s++) {
        requests[s] = link_nothing();
        buffer[s] = room(b->bytes);
    }
    for (uint64_t i = 0; i < count + (rank == 1 ? (uint64_t)slots : 0); i++) {
        int s = (int)(i % (uint64_t)slots);
        link_wait(&requests[s]);
        if (rank == 0) {
            rewrite(buffer[s], b->source, b->bytes, i);
            requests[s] = link_post_send(buffer[s], b->bytes, DATA);
        } else {
            if (i >= (uint64_t)slots) read_out(buffer[s], b->source, b->bytes, i - (uint64_t)slots);
            if (i < count) requests[s] = link_post_receive(buffer[s], b->bytes, DATA);
        }
    }
    for (int s = 0; s < slots; s++) link_wait(&requests[s]);
    if (rank == 0) link_receive(&answer, 8, ANSWER);
    else link_send(&answer, 8, ANSWER);
    for (int s = 0; s < slots; s++) free(buffer[s]);
}

static void stream(struct buffers *b, uint64_t count, uint64_t window) {
    if (b->bytes < 4096) {
        stream_small(b, count, window);
        return;
    }
    size_t slots = SLOT_BYTES / b->bytes;
    stream_large(b, count, (int)(slots < 3 ? 3 : slots > SLOTS ? SLOTS : slots));
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t at_rank(const uint64_t *sorted, uint64_t count, double share) {
    uint64_t i = (uint64_t)(share * (double)count);
    return count ? sorted[i < count ? i : count - 1] : 0;
}

/* The figures: p50, p99, p99.9 and mean of the round trips, then elapsed and CPU time; all in nanoseconds. Then what
 * was written and read. */
static void answer(FILE *to, uint64_t *samples, uint64_t count, uint64_t elapsed, uint64_t cpu) {
    double mean = 0;
    for (uint64_t i = 0; i < count; i++) mean += (double)samples[i] / (double)count;
    qsort(samples, count, sizeof *samples, ascending);
    fprintf(to, "%lu %lu %lu %.1f %lu %lu %lu %lu %lu %lu\n", (unsigned long)at_rank(samples, count, 0.5),
            (unsigned long)at_rank(samples, count, 0.99), (unsigned long)at_rank(samples, count, 0.999), mean,
            (unsigned long)elapsed, (unsigned long)cpu, (unsigned long)written_bytes, (unsigned long)written_sum,
            (unsigned long)read_bytes, (unsigned long)read_sum);
    fflush(to);
}

static void obey(FILE *to, char test, size_t bytes, uint64_t count, uint64_t window, uint64_t period_us) {
    struct buffers b = {room(bytes + SHIFT), room(bytes), room(bytes), bytes};
    uint64_t state = 88172645463325252u;
    sums = calloc((bytes + SHIFT) / 8 + 1, sizeof *sums);
    if (!sums) fail("no memory");
    for (size_t i = 0; i + 8 <= bytes + SHIFT; i += 8) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(b.source + i, &state, 8);
        sums[i / 8 + 1] = sums[i / 8] + state;
    }
    written_bytes = written_sum = read_bytes = read_sum = 0;
    uint64_t *samples = calloc(count + 1, sizeof *samples);
    uint64_t warm_up = count / 10 < 2 ? 2 : count / 10 > 500 ? 500 : count / 10;
    if (!samples) fail("no memory");
    if (test == 'p') ping_pong(&b, warm_up < count ? warm_up : count, 0, samples);
    else stream(&b, warm_up, window);
    meet();
    uint64_t cpu = cpu_ns(), start = now_ns();
    if (test == 'p') ping_pong(&b, count, period_us, samples);
    else stream(&b, count, window);
    uint64_t elapsed = now_ns() - start;
    answer(to, samples, rank == 0 && test == 'p' ? count : 0, elapsed, cpu_ns() - cpu);
    free(samples), free(sums), free(b.source), free(b.out), free(b.in);
}

static int report_to(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("nobody to report to");
    return fd;
}

int main(int argc, char **argv) {
    alarm(ORDER_SECONDS);
    link_open(&argc, &argv);
    if (argc != 4) fail("usage: team SOCKET CORE0 CORE1");
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(atoi(argv[2 + (rank & 1)]), &cores);
    if (sched_setaffinity(0, sizeof cores, &cores)) fail("cannot run on its core");
    int desk = report_to(argv[1]);
    FILE *orders = fdopen(desk, "r"), *answers = fdopen(dup(desk), "w");
    if (!orders || !answers) fail("nobody to report to");
    fprintf(answers, "rank %d\n", rank);
    fflush(answers);
    link_join(orders, answers);
    alarm(0);
    char line[256], test;
    unsigned long bytes, count, window, period_us;
    while (fgets(line, sizeof line, orders)) {
        if (sscanf(line, "%c %lu %lu %lu %lu", &test, &bytes, &count, &window, &period_us) != 5) fail("what?");
        alarm(ORDER_SECONDS);
        obey(answers, test, bytes, count, window, period_us);
        alarm(0);
    }
    alarm(END_SECONDS);
    link_close();
    return 0;
}
