#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const ps_optim plain = {.method = PS_SGD, .learning_rate = 1};

static void *serve(void *arg) {
    world *w = arg;
    ps_err err;
    w->code = ps_shard_run(&w->config, &err);
    return NULL;
}

void connect_pair(int pair[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, n) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&at, &n) == 0);
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(pair[0], (struct sockaddr *)&at, n) == 0);
    pair[1] = accept(listener, NULL, NULL);
    CHECK(pair[1] >= 0);
    close(listener);
}

int dial(world *w, uint32_t trainer) {
    int pair[2];
    connect_pair(pair);
    ps_mail mail = {pair[1], trainer, trainer + 1};
    CHECK(write(w->mail_fd, &mail, sizeof mail) == (ssize_t)sizeof mail);
    return pair[0];
}

void connect_client(world *w, uint32_t t) {
    ps_err err;
    CHECK(ps_client_attach(w->clients[t], 0, dial(w, t), &err) == PS_OK);
}

static void open_any(world *w, uint32_t n, int64_t stall_after_ms, const int *cuts) {
    int mail[2], events[2];
    ps_err err;
    memset(w, 0, sizeof *w);
    CHECK(pipe(mail) == 0 && pipe(events) == 0);
    fcntl(events[1], F_SETFL, O_NONBLOCK);
    w->n = n;
    w->mail_fd = mail[1];
    w->events_fd = events[0];
    w->cuts_fd = cuts[0];
    w->config = (ps_shard_config){.trainers = n,
                                  .mailbox_fd = mail[0],
                                  .event_fd = events[1],
                                  .stall_after_ms = stall_after_ms,
                                  .cut_fd = cuts[1],
                                  .counters = calloc(1 + n + PS_MAX_OBJECTS, sizeof *w->config.counters)};
    CHECK(w->config.counters != NULL);
    CHECK(pthread_create(&w->thread, NULL, serve, w) == 0);
    for (uint32_t t = 0; t < n; t++) {
        CHECK(ps_client_new(&w->clients[t], 1, 0, t, &err) == PS_OK);
        connect_client(w, t);
    }
}

void open_slow_world(world *w, uint32_t n, int64_t stall_after_ms) {
    open_any(w, n, stall_after_ms, (const int[]){-1, -1});
}

void open_cut_world(world *w, uint32_t n) {
    int cuts[2];
    CHECK(pipe(cuts) == 0);
    fcntl(cuts[1], F_SETFL, O_NONBLOCK);
    open_any(w, n, 1, cuts);
}

void open_world(world *w, uint32_t n) {
    open_slow_world(w, n, 1);
}

void close_world(world *w) {
    ps_mail stop = {-1, 0, 0};
    for (uint32_t t = 0; t < w->n; t++) ps_client_free(w->clients[t]);
    CHECK(write(w->mail_fd, &stop, sizeof stop) == (ssize_t)sizeof stop);
    CHECK(pthread_join(w->thread, NULL) == 0);
    CHECK(w->code == PS_OK);
    free(w->config.counters);
    const int fds[] = {w->mail_fd,         w->config.mailbox_fd, w->events_fd,
                       w->config.event_fd, w->cuts_fd,           w->config.cut_fd};
    for (size_t i = 0; i < 6 && fds[i] >= 0; i++) close(fds[i]);
}

void run_some(world *w, uint32_t from, int cuts) {
    ps_err err;
    uint32_t shard;
    bool done[MOST] = {false};
    for (uint32_t left = w->n - from; left > 0;) {
        for (uint32_t t = from; t < w->n; t++) {
            if (done[t]) continue;
            int code = ps_client_run(w->clients[t], cuts > 0 ? 1 : 20, 0, &shard, &err);
            if (code == PS_OK) {
                ps_client_clear(w->clients[t]);
                done[t] = true;
                left--;
                continue;
            }
            if (!CHECK(code == PS_EAGAIN)) return;
            if (cuts > 0) {
                cuts--;
                connect_client(w, t);
            }
        }
    }
}

void run_one(world *w, uint32_t t, int cuts) {
    ps_err err;
    uint32_t shard;
    for (int left = cuts + 30; left > 0; left--) {
        int code = ps_client_run(w->clients[t], cuts > 0 ? 1 : 1000, 0, &shard, &err);
        if (code == PS_OK) return;
        if (!CHECK(code == PS_EAGAIN)) return;
        if (cuts-- > 0) connect_client(w, t);
    }
    CHECK(false); /* it never completes */
}

void send_all(world *w, uint32_t t) {
    ps_err err;
    uint32_t shard;
    CHECK(ps_client_run(w->clients[t], 50, 0, &shard, &err) == PS_EAGAIN);
}

void run_all(world *w, int cuts) {
    run_some(w, 0, cuts);
}

void create_all(world *w) {
    static const float zero[SIZE];
    const ps_piece whole = {0, 0, SIZE};
    ps_err err;
    ps_create dense = {.total = SIZE, .optim = plain, .name_length = 1, .name = "w"};
    dense.mode = w->mode;
    dense.discard = w->discard;
    ps_create sparse = {
        .sparse = 1, .dim = DIM, .total = KEYS, .optim = plain, .name_length = 1, .name = "e"};
    sparse.mode = w->mode;
    sparse.discard = w->discard;
    for (uint32_t t = 0; t < w->n; t++) {
        CHECK(ps_client_create(w->clients[t], &dense, &whole, 1, &w->dense, &err) == PS_OK);
        CHECK(ps_client_create(w->clients[t], &sparse, &(ps_piece){0}, 1, &w->sparse, &err) == PS_OK);
        CHECK(ps_client_use(w->clients[t], PS_INIT, w->dense, NULL, t == 0 ? zero : NULL, NULL, &err) ==
              PS_OK);
    }
    run_all(w, 0);
}

float grads[MOST][SIZE], out[MOST][SIZE], rows[MOST][KEYS * DIM];
uint64_t keys[KEYS];

void add_push(world *w, uint32_t t) {
    ps_err err;
    for (uint64_t i = 0; i < KEYS; i++) keys[i] = i;
    for (size_t i = 0; i < SIZE; i++) grads[t][i] = (float)(t + 1);
    for (size_t i = 0; i < KEYS * DIM; i++) rows[t][i] = (float)(t + 1);
    CHECK(ps_client_use(w->clients[t], PS_PUSH, w->dense, &(ps_batch){1, 1}, grads[t], out[t], &err) ==
          PS_OK);
    CHECK(ps_client_use_rows(w->clients[t], PS_PUSH_ROWS, w->sparse, &(ps_batch){1, 1}, keys, KEYS, rows[t],
                             &err) == PS_OK);
}

void push_from(world *w, uint32_t from, int cuts) {
    for (uint32_t t = from; t < w->n; t++) add_push(w, t);
    run_some(w, from, cuts);
}

void push_one(world *w, uint32_t t, int cuts) {
    add_push(w, t);
    run_one(w, t, cuts);
}

void pull_all_rows(world *w, uint32_t t, float *got) {
    ps_err err;
    CHECK(ps_client_use_rows(w->clients[t], PS_PULL_ROWS, w->sparse, NULL, keys, KEYS, got, &err) == PS_OK);
    run_one(w, t, 0);
}

void check_values(world *w, uint32_t t, float expected) {
    float got[KEYS * DIM];
    pull_all_rows(w, t, got);
    bool same = true;
    for (size_t i = 0; i < SIZE; i++) same = same && out[t][i] == expected;
    for (size_t i = 0; i < KEYS * DIM; i++) same = same && got[i] == expected;
    CHECK(same);
}

size_t listen_to(int fd, uint8_t *buf, size_t size) {
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (n < size && poll(&p, 1, 1000) > 0) {
        ssize_t got = read(fd, buf + n, size - n);
        if (got <= 0) break;
        n += (size_t)got;
        if (n >= PS_HEADER_BYTES) break;
    }
    return n;
}

void send_frame(int fd, ps_header h, const uint8_t *body) {
    uint8_t raw[PS_HEADER_BYTES];
    ps_header_encode(&h, raw);
    /* An earlier frame may have ended the connection already. */
    CHECK(write(fd, raw, sizeof raw) == (ssize_t)sizeof raw || errno == EPIPE || errno == ECONNRESET);
    if (h.length > 0 && h.length < 65536) (void)!write(fd, body, h.length);
}
