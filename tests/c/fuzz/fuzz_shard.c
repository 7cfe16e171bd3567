/* libFuzzer's target: a shard with up to three authenticated trainers, of which each says whatever the input
 * makes of it. The input is a script of actions. They are played by epoll_wait(), one whenever the shard has
 * nothing left to do: so one thread runs the real loop, its clock is the script's, and an input does the same
 * in each run. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../harness.h"
#include "shard/ps_mail.h"

enum { TRAINERS = 3, OBJECTS = 4, BODY = 1 << 16, MOST_FLOATS = 4096, EPOCH = 7 };
enum { HANG_UP = PS_CUT + 1, RAW, WAIT, LACK, SAVE, ACTIONS };

typedef struct trainer {
    int fd; /* -1: not connected */
    uint64_t sequence, incarnation;
    uint8_t heard[PS_HEADER_BYTES]; /* the header of an answer */
    size_t heard_n;
    uint64_t skip; /* bytes of its body still to read */
} trainer;

static struct {
    const uint8_t *data;
    size_t size;
    int mail_fd, events_fd, cuts_fd;
    int64_t now_ms;
    bool ended;
    trainer trainers[TRAINERS];
    ps_create specs[OBJECTS];
    uint32_t objects_n;
    uint64_t versions[OBJECTS];
} play;

/* --- The input. --- */

static uint8_t take(void) {
    if (play.size == 0) return 0;
    play.size--;
    return *play.data++;
}

/* A small number that is mostly right: the given one, that and one, or another. */
static uint64_t near(uint64_t right, uint8_t how) {
    if (how < 160) return right;
    if (how < 200) return right + 1;
    if (how < 216) return right - 1;
    if (how < 248) return how & 7;
    return UINT64_MAX >> (8 * (how & 7));
}

/* --- Trainers. --- */

static void mail(int fd, uint32_t t, uint64_t incarnation) {
    ps_mail m = {fd, t, incarnation};
    if (write(play.mail_fd, &m, sizeof m) != (ssize_t)sizeof m) abort();
}

static void hang_up(trainer *p) {
    if (p->fd >= 0) close(p->fd);
    p->fd = -1;
    p->heard_n = 0;
    p->skip = 0;
}

static void dial(trainer *p, uint32_t t) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) < 0) abort();
    p->fd = pair[0];
    mail(pair[1], t, p->incarnation);
}

/* Learn from an answer what a real trainer knows: the step, and the request that was refused. */
static void learn(trainer *p) {
    ps_header h;
    ps_err err;
    if (ps_header_decode(p->heard, p->heard_n, &h, &err) < 0) abort(); /* no shard may say this */
    p->skip = h.length;
    p->heard_n = 0;
    if (h.op == PS_ERROR && h.sequence != 0) p->sequence = h.sequence;
    if (h.op != PS_ERROR && h.object < OBJECTS) play.versions[h.object] = h.version;
}

static void listen_to(trainer *p) {
    static uint8_t buf[BODY];
    if (p->fd < 0) return;
    for (ssize_t n; (n = read(p->fd, buf, sizeof buf)) != -1 || errno == EINTR;) {
        if (n == 0) {
            hang_up(p);
            return;
        }
        for (size_t at = 0; at < (size_t)n;) {
            size_t rest = (size_t)n - at, k = p->skip > 0 ? p->skip : PS_HEADER_BYTES - p->heard_n;
            if (k > rest) k = rest;
            if (p->skip > 0) {
                p->skip -= k;
            } else {
                memcpy(p->heard + p->heard_n, buf + at, k);
                p->heard_n += k;
                if (p->heard_n == PS_HEADER_BYTES) learn(p);
            }
            at += k;
        }
    }
}

/* --- Frames. --- */

static size_t make_create(uint8_t *body, uint32_t object) {
    uint8_t what = take(), size = take(), rule = take();
    ps_create c = {.sparse = what & 1, .mode = (what >> 1) % PS_MODES};
    c.discard = c.mode == PS_SYNC ? 0 : (what >> 3) & 1;
    c.name_length = 1;
    c.name[0] = (char)('a' + object);
    c.optim = (ps_optim){.method = ((uint32_t)what >> 4 | (uint32_t)(size & 1) << 4) % PS_METHODS,
                         .learning_rate = 1};
    const ps_number *own = ps_optim_method(c.optim.method)->numbers;
    for (int i = 0; i < PS_NUMBERS; i++) c.optim.numbers[i] = (float)own[i].usual;
    if (c.sparse) {
        c.dim = 1 + size % 8;
        c.total = 100;
        c.entry = (ps_entry){.rule = rule % PS_ENTRIES, .numbers = {rule % PS_ENTRIES == 2 ? 0.5f : 2, 0.1f}};
        if (c.entry.rule == PS_ENTRY_ANY) memset(c.entry.numbers, 0, sizeof c.entry.numbers);
        if (c.entry.rule < PS_ENTRY_SHOW_CLICK) c.entry.numbers[1] = 0;
        c.init = (ps_init){.seed = 1, .table = ps_table_id(c.name, 1), .std = (float)(rule >> 7)};
    } else {
        c.size = c.total = size;
    }
    size_t n = ps_create_encode(&c, body);
    if (rule & 64) body[take() % n] ^= take();
    return n;
}

/* Fill a body with numbers that keys and floats may be. */
static void fill(uint8_t *body, size_t n, uint64_t keys) {
    uint8_t seed = take();
    for (size_t i = 0; i + 4 <= n; i += 4) {
        float f = seed == 255 ? 1e30f * 1e30f : (float)(seed & 15) - 4;
        memcpy(body + i, &f, 4);
    }
    for (uint64_t i = 0; i < keys && 8 * i + 8 <= n; i++) {
        uint64_t key = (seed >> 4) * (i + 1);
        memcpy(body + 8 * i, &key, 8);
    }
}

/* Decide on an object's creation as the shard does. False: it would need much memory, as it may. */
static bool note_create(const uint8_t *body, size_t n, uint32_t object) {
    ps_create c;
    ps_err err;
    if (ps_create_decode(body, n, &c, &err) < 0) return true;
    uint8_t again[PS_MAX_CREATE];
    if (ps_create_encode(&c, again) != n || memcmp(again, body, n) != 0) abort();
    if (c.size > MOST_FLOATS || c.dim > MOST_FLOATS) return false;
    if (object == play.objects_n && object < OBJECTS) play.specs[play.objects_n++] = c;
    return true;
}

static size_t make_body(ps_header *h, uint8_t *body) {
    const ps_create *c = &play.specs[h->object % OBJECTS];
    size_t floats = h->op == PS_PUSH_ROWS ? ps_push_floats(c) : c->dim;
    uint8_t count;
    switch (h->op) {
    case PS_CREATE:
        return make_create(body, h->object);
    case PS_INIT:
        if (h->trainer != 0) return 0;
        /* fall through */
    case PS_PUSH:
        fill(body, c->size * sizeof(float), 0);
        return c->size * sizeof(float);
    case PS_SET_ROWS:
    case PS_PUSH_ROWS:
    case PS_PULL_ROWS:
        count = take();
        h->count = count < 250 ? count & 7 : (uint32_t)near(0, count);
        if (h->op == PS_PULL_ROWS) floats = 0;
        if (h->count > BODY / (8 + 4 * (floats + 1))) return 0;
        fill(body, h->count * (8 + 4 * floats), h->count);
        return h->count * (8 + 4 * floats);
    case PS_SHRINK:
        memcpy(body, &(ps_shrink){0.5f, (float)(take() & 3), take() & 3}, sizeof(ps_shrink));
        return sizeof(ps_shrink);
    default:
        return 0;
    }
}

static void send_frame(trainer *p, uint32_t t, uint16_t op) {
    static uint8_t raw[PS_HEADER_BYTES + BODY];
    uint8_t about = take(), damage = take(), version = take();
    ps_header h = {.op = op, .epoch = EPOCH, .trainer = t, .object = about & 3};
    h.samples = op == PS_PUSH || op == PS_PUSH_ROWS;
    h.factor = (float)h.samples;
    h.flags = (about >> 2) & ps_form_of(op).flags;
    if (op == PS_CREATE && (about & 128) == 0) h.object = play.objects_n;
    h.sequence = damage & 1 ? near(p->sequence, take()) : p->sequence;
    bool later = op == PS_PUSH || op == PS_PUSH_ROWS || (h.flags & PS_AFTER);
    h.version = near(op >= PS_END_PASS ? 0 : play.versions[h.object % OBJECTS] + later, version);
    h.length = make_body(&h, raw + PS_HEADER_BYTES);
    if (op == PS_CREATE && !note_create(raw + PS_HEADER_BYTES, h.length, h.object)) return;
    size_t n = PS_HEADER_BYTES + (size_t)h.length;
    if (damage & 2) h.length = near(h.length, take());
    if (damage & 4) h.trainer = take();
    if (damage & 8) h.samples = 0;
    ps_header_encode(&h, raw);
    if (damage & 16) raw[take() % PS_HEADER_BYTES] ^= take();
    if (damage & 32) n = n * take() / 256;
    (void)!write(p->fd, raw, n); /* what the socket does not take is lost, as in a connection that breaks */
    if (h.sequence == p->sequence) p->sequence++;
    if (damage & 32) p->sequence--; /* it comes again */
    if (damage & 64) hang_up(p);
}

/* --- The script. --- */

/* Do the next action. False: there is none. */
static bool act(void) {
    if (play.size == 0) return false;
    uint8_t what = take(), value = 0;
    uint32_t t = (what >> 5) % TRAINERS;
    uint16_t op = (what & 31) % ACTIONS;
    trainer *p = &play.trainers[t];
    switch (op) {
    case 0:
    case HANG_UP:
        hang_up(p);
        return true;
    case RAW:
        value = take();
        if (value > play.size) value = (uint8_t)play.size;
        if (p->fd >= 0) (void)!write(p->fd, play.data, value);
        play.data += value;
        play.size -= value;
        return true;
    case WAIT:
        play.now_ms += 100 * take();
        return true;
    case LACK:
        harness_fail_alloc(1 + take() % 8);
        return true;
    case SAVE:
        value = take();
        if (value < 32) p->incarnation++; /* another process of this trainer: it is refused */
        if (value == 255) mail(-1, PS_MAIL_SAVE, 0), play.ended = true;
        else if (value > 224) mail(-1, PS_MAIL_CUT, value);
        return true;
    default:
        if (p->fd < 0) dial(p, t);
        else send_frame(p, t, op);
        return true;
    }
}

int __real_epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int most, int timeout_ms) {
    static char event[sizeof(ps_event)], cut[1 << 16];
    for (;;) {
        int n = __real_epoll_wait(fd, events, most, 0);
        for (uint32_t t = 0; t < TRAINERS; t++) listen_to(&play.trainers[t]);
        while (read(play.events_fd, event, sizeof event) > 0) continue;
        while (read(play.cuts_fd, cut, sizeof cut) > 0) continue;
        if (n != 0 || timeout_ms == 0 || play.ended) return n;
        if (!act()) mail(-1, 0, 0), play.ended = true;
    }
}

int __wrap_poll(struct pollfd *polls, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *polls, nfds_t n, int timeout_ms) {
    static char cut[1 << 16];
    (void)polls, (void)n, (void)timeout_ms;
    while (read(play.cuts_fd, cut, sizeof cut) > 0) continue;
    return 1;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    play.now_ms++;
    *now = (struct timespec){play.now_ms / 1000, play.now_ms % 1000 * 1000000};
    return 0;
}

/* The owner's file: 40 values, or 10 rows of 4 after their keys. */
static int find_values(void *owner, const ps_create *spec, ps_first *f, ps_err *err) {
    static ps_stored part;
    (void)err;
    if (spec->name_length != 1 || (spec->name[0] != 'a' && spec->name[0] != 'b')) return PS_OK;
    part = (ps_stored){.fd = *(int *)owner, .at = 80, .stride = 0, .count = spec->sparse ? 10 : 40};
    *f = (ps_first){.steps = 3, .floats = 4, .init = spec->init, .shards = 1, .parts = &part, .n = 1};
    f->slots = spec->name[0] == 'b' && spec->dim == 2 && ps_optim_state(spec->optim.method, 1) == 1;
    return PS_OK;
}

/* Return a descriptor of the owner's file. */
static int make_file(void) {
    static int fd = -1;
    uint64_t keys[10 + 20];
    for (uint64_t i = 0; i < 10; i++) keys[i] = i;
    memset(keys + 10, 0, 160);
    if (fd < 0 && ((fd = memfd_create("values", MFD_CLOEXEC)) < 0 || write(fd, keys, sizeof keys) < 0))
        abort();
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static ps_counter counters[1 + TRAINERS + PS_MAX_OBJECTS][PS_COUNTERS];
    int mailbox[2], events[2], cuts[2];
    ps_err err;
    memset(&play, 0, sizeof play);
    memset(counters, 0, (1 + TRAINERS) * sizeof counters[0]);
    harness_fail_alloc(0);
    play.data = data;
    play.size = size;
    uint8_t how = take();
    for (uint32_t t = 0; t < TRAINERS; t++)
        play.trainers[t] = (trainer){.fd = -1, .sequence = 1, .incarnation = 1};
    if (pipe2(mailbox, O_CLOEXEC) < 0 || pipe2(events, O_CLOEXEC | O_NONBLOCK) < 0 ||
        pipe2(cuts, O_CLOEXEC | O_NONBLOCK) < 0 || fcntl(cuts[1], F_SETPIPE_SZ, 1 << 20) < 0)
        abort();
    play.mail_fd = mailbox[1];
    play.events_fd = events[0];
    play.cuts_fd = cuts[0];
    ps_shard_config config = {.trainers = 1 + how % TRAINERS,
                              .epoch = EPOCH,
                              .mailbox_fd = mailbox[0],
                              .event_fd = events[1],
                              .stall_after_ms = how & 64 ? 1000 : 0,
                              .cut_fd = cuts[1],
                              .counters = counters};
    int file = make_file();
    if (how & 128) config.finder = (ps_finder){find_values, &file};
    (void)ps_shard_run(&config, &err);
    for (uint32_t t = 0; t < TRAINERS; t++) hang_up(&play.trainers[t]);
    for (int i = 0; i < 2; i++) close(mailbox[i]), close(events[i]), close(cuts[i]);
    return 0;
}
