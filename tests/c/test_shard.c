/* A shard in a thread of its own and clients over loopback: both ends of the protocol at once. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness.h"
#include "ps_client.h"
#include "ps_shard.h"

enum { SIZE = 200000, DIM = 3, KEYS = 50, MOST = 3 };

static const ps_optim plain = {.method = PS_SGD, .learning_rate = 1};

/* One shard and its clients. */
typedef struct world {
    ps_shard_config config;
    int mail_fd, events_fd;
    int code;
    pthread_t thread;
    uint32_t n;
    ps_client *clients[MOST];
    uint32_t dense, sparse;
} world;

static void *serve(void *arg) {
    world *w = arg;
    ps_err err;
    w->code = ps_shard_run(&w->config, &err);
    return NULL;
}

/* Two ends of a TCP connection. */
static void connect_pair(int pair[2]) {
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

/* A connection to the shard as the trainer of this number. */
static int dial(world *w, uint32_t trainer) {
    int pair[2];
    connect_pair(pair);
    ps_mail mail = {pair[1], trainer, trainer + 1};
    CHECK(write(w->mail_fd, &mail, sizeof mail) == (ssize_t)sizeof mail);
    return pair[0];
}

static void connect_client(world *w, uint32_t t) {
    ps_err err;
    CHECK(ps_client_attach(w->clients[t], 0, dial(w, t), &err) == PS_OK);
}

static void open_slow_world(world *w, uint32_t n, int64_t stall_after_ms) {
    int mail[2], events[2];
    ps_err err;
    memset(w, 0, sizeof *w);
    CHECK(pipe(mail) == 0 && pipe(events) == 0);
    fcntl(events[1], F_SETFL, O_NONBLOCK);
    w->n = n;
    w->mail_fd = mail[1];
    w->events_fd = events[0];
    w->config = (ps_shard_config){
        .trainers = n, .mailbox_fd = mail[0], .event_fd = events[1], .stall_after_ms = stall_after_ms};
    CHECK(pthread_create(&w->thread, NULL, serve, w) == 0);
    for (uint32_t t = 0; t < n; t++) {
        CHECK(ps_client_new(&w->clients[t], 1, 0, t, t + 1, &err) == PS_OK);
        connect_client(w, t);
    }
}

static void open_world(world *w, uint32_t n) {
    open_slow_world(w, n, 1);
}

static void close_world(world *w) {
    ps_mail stop = {-1, 0, 0};
    for (uint32_t t = 0; t < w->n; t++) ps_client_free(w->clients[t]);
    CHECK(write(w->mail_fd, &stop, sizeof stop) == (ssize_t)sizeof stop);
    CHECK(pthread_join(w->thread, NULL) == 0);
    CHECK(w->code == PS_OK);
    const int fds[] = {w->mail_fd, w->events_fd, w->config.mailbox_fd, w->config.event_fd};
    for (size_t i = 0; i < 4; i++) close(fds[i]);
}

/* Run the calls of clients [from, n) by turns until all are done; each is cut `cuts` times on the way. */
static void run_some(world *w, uint32_t from, int cuts) {
    ps_err err;
    uint32_t shard;
    bool done[MOST] = {false};
    for (uint32_t left = w->n - from; left > 0;) {
        for (uint32_t t = from; t < w->n; t++) {
            if (done[t]) continue;
            int code = ps_client_run(w->clients[t], cuts > 0 ? 1 : 20, &shard, &err);
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

static void run_all(world *w, int cuts) {
    run_some(w, 0, cuts);
}

static void create_all(world *w) {
    static const float zero[SIZE];
    const ps_piece whole = {0, 0, SIZE};
    ps_err err;
    ps_create dense = {.total = SIZE, .optim = plain, .name_length = 1, .name = "w"};
    ps_create sparse = {
        .sparse = 1, .dim = DIM, .total = KEYS, .optim = plain, .name_length = 1, .name = "e"};
    for (uint32_t t = 0; t < w->n; t++) {
        CHECK(ps_client_dense(w->clients[t], &dense, &whole, 1, &w->dense, &err) == PS_OK);
        CHECK(ps_client_sparse(w->clients[t], &sparse, 0, 1, &w->sparse, &err) == PS_OK);
        CHECK(ps_client_init(w->clients[t], w->dense, t == 0 ? zero : NULL, &err) == PS_OK);
    }
    run_all(w, 0);
}

static float grads[MOST][SIZE], out[MOST][SIZE], rows[MOST][KEYS * DIM];
static uint64_t keys[KEYS];

static void push_from(world *w, uint32_t from, int cuts) {
    ps_err err;
    for (uint64_t i = 0; i < KEYS; i++) keys[i] = i;
    for (uint32_t t = from; t < w->n; t++) {
        for (size_t i = 0; i < SIZE; i++) grads[t][i] = (float)(t + 1);
        for (size_t i = 0; i < KEYS * DIM; i++) rows[t][i] = (float)(t + 1);
        CHECK(ps_client_push(w->clients[t], w->dense, grads[t], out[t], &err) == PS_OK);
        CHECK(ps_client_push_rows(w->clients[t], w->sparse, keys, rows[t], KEYS, &err) == PS_OK);
    }
    run_some(w, from, cuts);
}

static void check_values(world *w, uint32_t t, float expected) {
    ps_err err;
    uint32_t shard;
    float got[KEYS * DIM];
    CHECK(ps_client_pull_rows(w->clients[t], w->sparse, keys, KEYS, got, &err) == PS_OK);
    CHECK(ps_client_run(w->clients[t], 5000, &shard, &err) == PS_OK);
    ps_client_clear(w->clients[t]);
    bool same = true;
    for (size_t i = 0; i < SIZE; i++) same = same && out[t][i] == expected;
    for (size_t i = 0; i < KEYS * DIM; i++) same = same && got[i] == expected;
    CHECK(same);
}

static void test_pushes(uint32_t n, int cuts) {
    world w;
    open_world(&w, n);
    create_all(&w);
    for (int step = 1; step <= 3; step++) {
        push_from(&w, 0, cuts);
        for (uint32_t t = 0; t < n; t++) check_values(&w, t, -(float)(step * (int)(n * (n + 1) / 2)));
    }
    close_world(&w);
}

TEST(a_push_of_one_trainer) {
    test_pushes(1, 0);
}

TEST(pushes_of_three_trainers_are_summed) {
    test_pushes(3, 0);
}

TEST(pushes_count_once_when_connections_break) {
    test_pushes(1, 7);
    test_pushes(3, 23);
}

TEST(values_are_lent) {
    long before = harness_spliced();
    test_pushes(3, 0);
    CHECK(harness_spliced() - before >= 9L * SIZE * (long)sizeof(float));
}

TEST(where_values_can_not_be_lent_they_are_copied) {
    long before = harness_spliced();
    const int errors[][2] = {{ENOSYS, 0}, {0, EINVAL}, {0, EPERM}};
    for (size_t i = 0; i < 3; i++) {
        harness_fail_splice(errors[i][0], errors[i][1]);
        test_pushes(3, 5);
    }
    CHECK(harness_spliced() == before);
}

TEST(a_trainer_that_ended_the_pass_is_an_empty_push) {
    world w;
    ps_err err;
    open_world(&w, 3);
    create_all(&w);
    CHECK(ps_client_tell(w.clients[0], PS_END_PASS, 0, &err) == PS_OK);
    uint32_t shard;
    CHECK(ps_client_run(w.clients[0], 20, &shard, &err) == PS_EAGAIN);
    push_from(&w, 1, 3);
    for (uint32_t t = 1; t < 3; t++) {
        check_values(&w, t, -5);
        CHECK(ps_client_tell(w.clients[t], PS_END_PASS, 0, &err) == PS_OK);
    }
    run_all(&w, 2);
    CHECK(ps_client_version(w.clients[0], w.dense) == 1);
    push_from(&w, 0, 0);
    for (uint32_t t = 0; t < 3; t++) check_values(&w, t, -11);
    close_world(&w);
}

TEST(a_call_that_was_built_and_not_run_leaves_no_trace) {
    world w;
    ps_err err;
    const ps_create spec = {.total = 4, .optim = plain, .name_length = 1, .name = "v"};
    const ps_piece piece = {0, 0, 4};
    uint32_t id;
    open_slow_world(&w, 1, 0); /* its thread allocates nothing meanwhile */
    create_all(&w);
    for (int i = 1; i <= 2; i++) {
        CHECK(ps_client_push(w.clients[0], w.dense, grads[0], out[0], &err) == PS_OK);
        CHECK(ps_client_pull_rows(w.clients[0], 99, keys, KEYS, rows[0], &err) == PS_EINVAL);
        harness_fail_alloc(i);
        CHECK(ps_client_dense(w.clients[0], &spec, &piece, 1, &id, &err) == PS_ENOMEM);
        harness_fail_alloc(0);
        ps_client_clear(w.clients[0]);
    }
    CHECK(ps_client_dense(w.clients[0], &spec, &piece, 1, &id, &err) == PS_OK && id == w.sparse + 1);
    run_all(&w, 0);
    push_from(&w, 0, 0);
    check_values(&w, 0, -1);
    close_world(&w);
}

/* What comes back on a raw connection until it is closed, or for a second. */
static size_t listen_to(int fd, uint8_t *buf, size_t size) {
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

static void send_frame(int fd, ps_header h, const uint8_t *body) {
    uint8_t raw[PS_HEADER_BYTES];
    ps_header_encode(&h, raw);
    /* An earlier frame may have ended the connection already. */
    CHECK(write(fd, raw, sizeof raw) == (ssize_t)sizeof raw || errno == EPIPE || errno == ECONNRESET);
    if (h.length > 0 && h.length < 65536) (void)!write(fd, body, h.length);
}

/* A long body is awaited in large pieces; slow bytes are taken nevertheless, so that no silence is reported. */
TEST(a_long_body_that_comes_slowly_is_heard) {
    world w;
    static const uint8_t part[4096];
    open_world(&w, 2);
    create_all(&w);
    int pair[2], unread = 1;
    connect_pair(pair);
    ps_mail mail = {pair[1], 0, 1};
    CHECK(write(w.mail_fd, &mail, sizeof mail) == (ssize_t)sizeof mail);
    ps_header push = {
        .op = PS_PUSH, .sequence = 4, .object = w.dense, .version = 1, .incarnation = 1, .length = SIZE * 4};
    send_frame(pair[0], push, part);
    for (int i = 0; i < 10; i++) {
        CHECK(write(pair[0], part, sizeof part) == (ssize_t)sizeof part);
        for (int ms = 0; ms < 10000 && unread > 0; ms++) {
            CHECK(ioctl(pair[1], FIONREAD, &unread) == 0);
            if (unread > 0) poll(NULL, 0, 1);
        }
        CHECK(unread == 0);
        unread = 1;
    }
    close(pair[0]);
    close_world(&w);
}

TEST(requests_that_make_no_sense_are_answered_by_an_error) {
    world w;
    uint8_t body[65536] = {0}, heard[512];
    open_world(&w, 2);
    create_all(&w);
    const ps_header bad[] = {
        {.op = PS_PUSH, .object = 99},
        {.op = PS_PUSH, .object = 0, .version = 7, .length = SIZE * 4},
        {.op = PS_PUSH, .object = 0, .version = 1, .length = 12},
        {.op = PS_PUSH, .object = 1, .version = 1},
        {.op = PS_PUSH_ROWS, .object = 1, .version = 1, .length = 3, .count = 1},
        {.op = PS_PUSH_ROWS, .object = 1, .version = 1, .count = UINT32_MAX},
        {.op = PS_PULL_ROWS, .object = 0, .length = 8, .count = 1},
        {.op = PS_SET_ROWS, .object = 1},
        {.op = PS_INIT, .object = 0, .length = SIZE * 4},
        {.op = PS_CREATE, .object = 50, .length = 80},
        {.op = PS_CREATE, .object = 2, .length = 7},
        {.op = PS_END_PASS, .version = 5},
        {.op = PS_BARRIER, .version = 5},
        {.op = PS_DONE},
        {.op = PS_PULL, .epoch = 1},
        {.op = PS_PULL, .sequence = 1000},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ps_header h = bad[i], answer;
        ps_err err;
        int fd = dial(&w, 1);
        h.trainer = 1;
        h.incarnation = 2;
        if (h.sequence == 0) h.sequence = 4; /* three were sent by create_all() */
        send_frame(fd, h, body);
        CHECK(listen_to(fd, heard, sizeof heard) >= PS_HEADER_BYTES);
        CHECK(ps_header_decode(heard, PS_HEADER_BYTES, &answer, &err) > 0 && answer.op == PS_ERROR);
        close(fd);
    }
    close_world(&w);
}

TEST(random_and_damaged_frames_never_hurt) {
    world w;
    uint8_t raw[4096];
    open_world(&w, 2);
    create_all(&w);
    for (int round = 0; round < 300; round++) {
        int fd = dial(&w, 1);
        for (size_t i = 0; i < sizeof raw; i++) raw[i] = (uint8_t)harness_random();
        for (int k = 0; k < 3; k++) { /* well-formed headers of random requests, then random bytes */
            ps_header h = {.op = (uint16_t)(1 + harness_random() % 10),
                           .trainer = 1,
                           .incarnation = 2,
                           .sequence = 1 + harness_random() % 8,
                           .object = (uint32_t)(harness_random() % 4),
                           .flags = (uint32_t)(harness_random() % 4),
                           .version = harness_random() % 3,
                           .count = (uint32_t)(harness_random() % 5)};
            h.length = h.count * (harness_random() % 2 ? 8 + 4 * DIM : 8);
            if (harness_random() % 4 == 0) h.length = SIZE * 4;
            if (h.op == PS_FINISH) continue; /* the trainer would count as finished */
            send_frame(fd, h, raw);
        }
        (void)!write(fd, raw, harness_random() % sizeof raw);
        close(fd);
    }
    ps_header answer;
    ps_err err;
    int fd = dial(&w, 1);
    send_frame(fd, (ps_header){.op = PS_PULL, .epoch = 9, .trainer = 1, .incarnation = 2, .sequence = 1},
               raw);
    CHECK(listen_to(fd, raw, sizeof raw) >= PS_HEADER_BYTES);
    CHECK(ps_header_decode(raw, PS_HEADER_BYTES, &answer, &err) > 0);
    close(fd);
    close_world(&w);
}

/* One pull of rows, as a trainer that only looks. */
static void look(world *w, uint32_t t) {
    ps_err err;
    uint32_t shard;
    float got[KEYS * DIM];
    CHECK(ps_client_pull_rows(w->clients[t], w->sparse, keys, KEYS, got, &err) == PS_OK);
    CHECK(ps_client_run(w->clients[t], 5000, &shard, &err) == PS_OK);
    ps_client_clear(w->clients[t]);
}

/* Whether a stall is reported while trainer `busy` looks again and again, at most `looks` times with a
 * millisecond between them; its text. */
static bool hear_stall(world *w, uint32_t busy, int looks, char *text) {
    ps_event e;
    struct pollfd p = {.fd = w->events_fd, .events = POLLIN};
    for (int i = 0; i < looks; i++) {
        look(w, busy);
        if (poll(&p, 1, 1) == 0 || read(w->events_fd, &e, sizeof e) != (ssize_t)sizeof e) continue;
        if (e.kind != PS_EVENT_STALLED) continue;
        memcpy(text, e.text, sizeof e.text);
        return true;
    }
    return false;
}

TEST(reads_of_others_do_not_hide_a_stall) {
    world w;
    ps_err err;
    uint32_t shard;
    char text[PS_EVENT_TEXT] = "";
    open_slow_world(&w, 3, 300);
    create_all(&w);
    CHECK(ps_client_push(w.clients[0], w.dense, grads[0], out[0], &err) == PS_OK);
    CHECK(ps_client_run(w.clients[0], 20, &shard, &err) == PS_EAGAIN);
    CHECK(hear_stall(&w, 2, 5000, text));
    CHECK(strncmp(text, "step 1 waits for trainer 1", 26) == 0);
    close_world(&w);
}

TEST(a_trainer_that_is_busy_does_not_stall_the_pass) {
    world w;
    ps_err err;
    uint32_t shard;
    char text[PS_EVENT_TEXT] = "";
    open_slow_world(&w, 2, 700);
    create_all(&w);
    CHECK(ps_client_tell(w.clients[0], PS_END_PASS, 0, &err) == PS_OK);
    CHECK(ps_client_run(w.clients[0], 20, &shard, &err) == PS_EAGAIN);
    CHECK(!hear_stall(&w, 1, 1400, text));
    close_world(&w);
}
