#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "world.h"

static void open_mode(world *w, uint32_t n, uint32_t mode, uint32_t discard) {
    open_world(w, n);
    w->mode = mode;
    w->discard = discard;
    create_all(w);
}

TEST(an_asynchronous_push_waits_for_nobody) {
    world w;
    open_mode(&w, 2, PS_ASYNC, 0);
    push_one(&w, 0, 0);
    CHECK(out[0][0] == -1 && out[0][SIZE - 1] == -1);
    push_one(&w, 1, 0);
    push_one(&w, 1, 0);
    check_values(&w, 1, -5);
    CHECK(ps_client_version(w.clients[1], w.dense, 0) == 3 &&
          ps_client_version(w.clients[1], w.sparse, 0) == 3);
    close_world(&w);
}

TEST(an_asynchronous_push_that_breaks_off_goes_on_where_it_stopped) {
    world w;
    open_mode(&w, 1, PS_HALF_ASYNC, 0);
    for (int i = 1; i <= 3; i++) {
        push_one(&w, 0, 9);
        check_values(&w, 0, (float)-i);
    }
    CHECK(ps_client_version(w.clients[0], w.dense, 0) == 3);
    close_world(&w);
}

TEST(a_push_that_comes_too_late_is_dropped_and_counted) {
    world w;
    ps_err err;
    open_mode(&w, 2, PS_ASYNC, 2);
    for (uint32_t t = 0; t < 2; t++) ps_client_mark(w.clients[t], false);
    push_one(&w, 0, 0);
    push_one(&w, 1, 0); /* one update came on top of what it was computed from */
    CHECK(ps_client_dropped(w.clients[1], w.dense) == 0 && out[1][0] == -3);
    push_one(&w, 1, 3); /* two: it has not looked at values since its mark */
    CHECK(ps_client_dropped(w.clients[1], w.dense) == 1 && ps_client_dropped(w.clients[1], w.sparse) == 1);
    CHECK(out[1][0] == -3 && out[1][SIZE - 1] == -3);
    CHECK(ps_client_version(w.clients[1], w.dense, 0) == 2);
    CHECK(ps_client_use_rows(w.clients[1], PS_PULL_ROWS, w.sparse, NULL, keys, KEYS, rows[1], &err) == PS_OK);
    run_one(&w, 1, 0);
    ps_client_mark(w.clients[1], false);
    push_one(&w, 1, 0);
    CHECK(ps_client_dropped(w.clients[1], w.dense) == 1 && ps_client_dropped(w.clients[1], w.sparse) == 1);
    CHECK(out[1][0] == -5);
    close_world(&w);
}

/* A push of two gradients is as old as the rows of the first; the next one as old as its own. */
TEST(rows_that_were_read_for_a_sum_make_no_later_push_older) {
    world w;
    ps_err err;
    open_mode(&w, 2, PS_ASYNC, 3);
    for (int step = 0; step < 3; step++) { /* versions 0, 2 and 5 are read */
        CHECK(ps_client_use_rows(w.clients[1], PS_PULL_ROWS, w.sparse, NULL, keys, KEYS, rows[1], &err) ==
              PS_OK);
        run_one(&w, 1, 0);
        CHECK(ps_client_use(w.clients[1], PS_PULL, w.dense, NULL, NULL, out[1], &err) == PS_OK);
        run_one(&w, 1, 0);
        ps_client_mark(w.clients[1], step == 1);
        if (step > 0) push_one(&w, 1, 0);
        for (int i = 0; i < 2; i++) {
            ps_client_mark(w.clients[0], false);
            push_one(&w, 0, 0);
        }
        CHECK(ps_client_dropped(w.clients[1], w.sparse) == 0);
    }
    push_one(&w, 1, 0); /* three came since the last mark: its own, and two of the other */
    CHECK(ps_client_dropped(w.clients[1], w.sparse) == 1);
    close_world(&w);
}

TEST(trainers_that_differ_in_mode_are_refused_with_both) {
    world w;
    ps_err err = {0};
    uint32_t shard, id;
    const ps_piece whole = {0, 0, SIZE};
    ps_create spec = {
        .total = SIZE, .optim = {.method = PS_SGD}, .mode = PS_ASYNC, .name_length = 1, .name = "w"};
    open_world(&w, 2);
    CHECK(ps_client_create(w.clients[0], &spec, &whole, 1, &id, &err) == PS_OK);
    run_one(&w, 0, 0);
    spec.mode = PS_SYNC;
    CHECK(ps_client_create(w.clients[1], &spec, &whole, 1, &id, &err) == PS_OK);
    CHECK(ps_client_run(w.clients[1], 5000, 0, &shard, &err) == PS_EREMOTE);
    CHECK(strstr(err.text, "do not agree on 'w': mode sync against async") != NULL);
    close_world(&w);
}

TEST(rows_that_are_read_after_a_push_are_those_of_its_step) {
    world w;
    ps_err err;
    float read[MOST][KEYS * DIM];
    for (int cuts = 0; cuts < 12; cuts += 11) {
        open_mode(&w, 3, PS_SYNC, 0);
        for (int step = 1; step <= 3; step++) {
            for (uint32_t t = 0; t < 3; t++) {
                add_push(&w, t);
                CHECK(ps_client_use_rows(w.clients[t], PS_PULL_ROWS, w.sparse, NULL, keys, KEYS, read[t],
                                         &err) == PS_OK);
            }
            run_all(&w, cuts);
            for (uint32_t t = 0; t < 3; t++)
                CHECK(read[t][0] == (float)(-6 * step) && read[t][KEYS * DIM - 1] == read[t][0]);
        }
        close_world(&w);
    }
}

TEST(a_read_after_a_step_that_the_trainer_has_not_pushed_is_refused) {
    world w;
    uint8_t heard[512];
    const uint64_t key = 1;
    ps_header answer, read = {.op = PS_PULL_ROWS, .trainer = 1, .sequence = 4, .flags = PS_AFTER};
    ps_err err;
    open_mode(&w, 2, PS_SYNC, 0);
    read.object = w.sparse, read.version = 1, read.count = 1, read.length = 8;
    int fd = dial(&w, 1);
    send_frame(fd, read, (const uint8_t *)&key);
    CHECK(listen_to(fd, heard, sizeof heard) >= PS_HEADER_BYTES);
    CHECK(ps_header_decode(heard, PS_HEADER_BYTES, &answer, &err) > 0 && answer.op == PS_ERROR);
    close(fd);
    close_world(&w);
}

TEST(calls_overlap_and_complete_each_for_itself) {
    world w;
    ps_err err;
    uint32_t shard;
    static float values[SIZE];
    open_mode(&w, 2, PS_SYNC, 0);
    CHECK(ps_client_use(w.clients[0], PS_PULL, w.dense, NULL, NULL, values, &err) == PS_OK);
    run_one(&w, 0, 0);
    add_push(&w, 0);
    uint64_t push = ps_client_begin(w.clients[0]);
    CHECK(ps_client_use(w.clients[0], PS_PUSH, w.dense, &(ps_batch){1, 1}, grads[0], NULL, &err) ==
          PS_EINVAL);
    ps_client_cancel(w.clients[0]);
    CHECK(ps_client_tell(w.clients[0], PS_BARRIER, 0, &err) == PS_OK);
    uint64_t barrier = ps_client_begin(w.clients[0]);
    send_all(&w, 0);
    CHECK(!ps_client_done(w.clients[0], push) && !ps_client_done(w.clients[0], barrier));
    push_one(&w, 1, 0);
    for (int i = 0; i < 5000 && !ps_client_done(w.clients[0], push); i++) {
        CHECK(ps_client_progress(w.clients[0], &shard, &err) == PS_OK);
        poll(NULL, 0, 1);
    }
    CHECK(ps_client_done(w.clients[0], push) && !ps_client_done(w.clients[0], barrier) && out[0][7] == -3);
    CHECK(ps_client_tell(w.clients[1], PS_BARRIER, 0, &err) == PS_OK);
    run_one(&w, 1, 0);
    CHECK(ps_client_run(w.clients[0], 5000, barrier, &shard, &err) == PS_OK);
    CHECK(ps_client_done(w.clients[0], barrier));
    close_world(&w);
}

TEST(rows_are_set_before_the_first_push_alone) {
    world w;
    ps_err err = {0};
    uint32_t shard;
    open_mode(&w, 1, PS_SYNC, 0);
    push_one(&w, 0, 0);
    CHECK(ps_client_use_rows(w.clients[0], PS_SET_ROWS, w.sparse, NULL, keys, KEYS, rows[0], &err) == PS_OK);
    CHECK(ps_client_run(w.clients[0], 5000, 0, &shard, &err) == PS_EREMOTE);
    CHECK(strstr(err.text, "sets rows of 'e' after the first push") != NULL);
    close_world(&w);
}

static void *flood(void *arg) {
    int fd = *(int *)arg;
    uint8_t raw[64 * PS_HEADER_BYTES];
    for (uint64_t sequence = 4;; sequence += 64) {
        for (uint64_t i = 0; i < 64; i++) {
            ps_header h = {.op = PS_END_PASS, .trainer = 1, .sequence = sequence + i};
            ps_header_encode(&h, raw + i * PS_HEADER_BYTES);
        }
        if (write(fd, raw, sizeof raw) != (ssize_t)sizeof raw) return NULL;
    }
}

TEST(frames_without_a_body_count_against_a_share) {
    world w;
    ps_err err;
    pthread_t thread;
    open_mode(&w, 2, PS_SYNC, 0);
    int fd = dial(&w, 1);
    CHECK(pthread_create(&thread, NULL, flood, &fd) == 0);
    for (int i = 0; i < 20; i++) { /* others are served meanwhile */
        uint32_t shard;
        CHECK(ps_client_use(w.clients[0], PS_PULL, w.dense, NULL, NULL, out[0], &err) == PS_OK);
        if (!CHECK(ps_client_run(w.clients[0], 10000, 0, &shard, &err) == PS_OK)) break;
    }
    shutdown(fd, SHUT_RDWR);
    CHECK(pthread_join(thread, NULL) == 0);
    close(fd);
    close_world(&w);
}

/* Read events until one of this kind; returns the number of the `counted` ones. */
static int read_events(int fd, uint32_t last, uint32_t counted, ps_event *e) {
    int n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, 10000) > 0 && read(fd, e, sizeof *e) == (ssize_t)sizeof *e) {
        n += e->kind == counted;
        if (e->kind == last) return n;
    }
    CHECK(false);
    return n;
}

TEST(no_connection_is_lost_however_full_the_pipe) {
    enum { TIMES = 2000 };
    world w;
    ps_event e;
    open_world(&w, 1);
    CHECK(fcntl(w.config.event_fd, F_SETPIPE_SZ, 4096) > 0);
    for (int i = 0; i < TIMES; i++) close(dial(&w, 0));
    ps_mail stop = {-1, 0, 0};
    CHECK(write(w.mail_fd, &stop, sizeof stop) == (ssize_t)sizeof stop);
    CHECK(read_events(w.events_fd, PS_EVENT_STATS, PS_EVENT_CONNECTED, &e) == TIMES + 1);
    close_world(&w);
}

TEST(the_last_event_has_the_steps_and_what_was_dropped) {
    world w;
    ps_event e;
    open_mode(&w, 1, PS_SYNC, 0);
    for (int i = 0; i < 3; i++) push_one(&w, 0, 0);
    ps_mail stop = {-1, 0, 0};
    CHECK(write(w.mail_fd, &stop, sizeof stop) == (ssize_t)sizeof stop);
    read_events(w.events_fd, PS_EVENT_STATS, 0, &e);
    CHECK(strncmp(e.text, "steps=3 objects=2 ", 18) == 0); /* not one of each object */
    CHECK(e.a == SIZE * 4 + KEYS * (8 + DIM * 4));
    close_world(&w);

    open_mode(&w, 1, PS_ASYNC, 1);
    ps_client_mark(w.clients[0], false);
    for (int i = 0; i < 3; i++) push_one(&w, 0, 0);
    CHECK(write(w.mail_fd, &stop, sizeof stop) == (ssize_t)sizeof stop);
    CHECK(read_events(w.events_fd, PS_EVENT_STATS, PS_EVENT_DROPPED, &e) == 2);
    CHECK(strstr(e.text, "dropped=4 torn=0") != NULL);
    close_world(&w);
}

TEST(a_push_that_never_comes_back_is_counted_as_torn) {
    world w;
    ps_event e;
    static uint8_t body[4096];
    open_mode(&w, 1, PS_ASYNC, 0);
    int fd = dial(&w, 0);
    ps_header push = {.op = PS_PUSH, .sequence = 4, .object = w.dense, .length = SIZE * 4};
    send_frame(fd, push, body);
    CHECK(write(fd, body, sizeof body) == (ssize_t)sizeof body);
    close(fd);
    CHECK(read_events(w.events_fd, PS_EVENT_GONE, 0, &e) == 0);
    ps_mail stop = {-1, 0, 0};
    CHECK(write(w.mail_fd, &stop, sizeof stop) == (ssize_t)sizeof stop);
    read_events(w.events_fd, PS_EVENT_STATS, 0, &e);
    CHECK(strstr(e.text, "torn=1") != NULL);
    close_world(&w);
}
