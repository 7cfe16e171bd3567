#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

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

TEST(pushes_are_summed_and_count_once_when_connections_break) {
    test_pushes(1, 0);
    test_pushes(3, 0);
    test_pushes(1, 7);
    test_pushes(3, 23);
}

TEST(a_trainer_that_ended_the_pass_is_an_empty_push) {
    world w;
    ps_err err;
    open_world(&w, 3);
    create_all(&w);
    CHECK(ps_client_tell(w.clients[0], PS_END_PASS, 0, &err) == PS_OK);
    send_all(&w, 0);
    push_from(&w, 1, 3);
    for (uint32_t t = 1; t < 3; t++) {
        check_values(&w, t, -5);
        CHECK(ps_client_tell(w.clients[t], PS_END_PASS, 0, &err) == PS_OK);
    }
    run_all(&w, 2);
    CHECK(ps_client_version(w.clients[0], w.dense, 0) == 1);
    push_from(&w, 0, 0);
    for (uint32_t t = 0; t < 3; t++) check_values(&w, t, -11);
    close_world(&w);
}

TEST(a_call_that_was_built_and_not_run_leaves_no_trace) {
    world w;
    ps_err err;
    const ps_create spec = {
        .total = 4, .optim = {.method = PS_SGD, .learning_rate = 1}, .name_length = 1, .name = "v"};
    const ps_piece piece = {0, 0, 4};
    uint32_t id;
    open_slow_world(&w, 1, 0); /* its thread allocates nothing meanwhile */
    create_all(&w);
    for (int i = 1; i <= 2; i++) {
        CHECK(ps_client_use(w.clients[0], PS_PUSH, w.dense, &(ps_batch){1, 1}, grads[0], out[0], &err) ==
              PS_OK);
        CHECK(ps_client_use_rows(w.clients[0], PS_PULL_ROWS, 99, NULL, keys, KEYS, rows[0], &err) ==
              PS_EINVAL);
        harness_fail_alloc(i);
        CHECK(ps_client_create(w.clients[0], &spec, &piece, 1, &id, &err) == PS_ENOMEM);
        harness_fail_alloc(0);
        ps_client_clear(w.clients[0]);
    }
    CHECK(ps_client_create(w.clients[0], &spec, &piece, 1, &id, &err) == PS_OK && id == w.sparse + 1);
    run_all(&w, 0);
    push_from(&w, 0, 0);
    check_values(&w, 0, -1);
    close_world(&w);
}

/* A long body is awaited in large pieces; slow bytes are taken nevertheless, so that no silence is reported.
 */
TEST(a_long_body_that_comes_slowly_is_heard) {
    world w;
    static const uint8_t part[4096];
    open_world(&w, 2);
    create_all(&w);
    int pair[2], unread = 1;
    connect_pair(pair);
    ps_mail mail = {pair[1], 0, 1};
    CHECK(write(w.mail_fd, &mail, sizeof mail) == (ssize_t)sizeof mail);
    ps_header push = {.op = PS_PUSH, .sequence = 4, .object = w.dense, .version = 1, .length = SIZE * 4};
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
        {.op = PS_CREATE, .object = 50, .length = PS_CREATE_BYTES},
        {.op = PS_CREATE, .object = 2, .length = 7},
        {.op = PS_CREATE, .object = 2, .length = PS_CREATE_BYTES, .sequence = 1},
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
                           .sequence = 1 + harness_random() % 8,
                           .object = (uint32_t)(harness_random() % 4),
                           .flags = (uint32_t)(harness_random() % 16),
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
    send_frame(fd, (ps_header){.op = PS_PULL, .epoch = 9, .trainer = 1, .sequence = 1}, raw);
    CHECK(listen_to(fd, raw, sizeof raw) >= PS_HEADER_BYTES);
    CHECK(ps_header_decode(raw, PS_HEADER_BYTES, &answer, &err) > 0);
    close(fd);
    close_world(&w);
}

/* Send the same request `n` times, at most 500 ahead of the answers, and read `most` of these. Returns their
 * number: fewer if none comes for so long. */
static size_t send_many(int fd, ps_header h, const uint8_t *body, size_t n, size_t most, int patience_ms) {
    static uint8_t heard[500 * PS_HEADER_BYTES];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    size_t sent = 0, bytes = 0;
    while (bytes < most * PS_HEADER_BYTES) {
        for (; sent < n && sent < bytes / PS_HEADER_BYTES + 500; sent++, h.sequence++)
            send_frame(fd, h, body);
        if (poll(&p, 1, patience_ms) == 0) break;
        ssize_t got = read(fd, heard, sizeof heard);
        if (!CHECK(got > 0)) break;
        bytes += (size_t)got;
    }
    return bytes / PS_HEADER_BYTES;
}

/* Frames without a key are held as well: each counts as memory, so that they are bounded, and one more costs
 * no more than the first. */
TEST(held_frames_are_bounded_and_cheap) {
    enum { ROWS = 3276, ROW = 8 + 4 * DIM, FULL = 900, CHARGE = sizeof(ps_held) };
    static const uint8_t body[ROWS * ROW];
    const size_t empty = (PS_MAX_HELD_BYTES - FULL * (CHARGE + sizeof body)) / CHARGE;
    world w;
    open_slow_world(&w, 2, 0);
    create_all(&w);
    int fd = dial(&w, 1);
    ps_header push = {.op = PS_PUSH_ROWS, .trainer = 1, .sequence = 4, .object = w.sparse, .version = 1};
    push.flags = PS_MORE;
    push.samples = 1;
    push.factor = 1;
    clock_t begin = clock();
    push.count = ROWS;
    push.length = sizeof body;
    CHECK(send_many(fd, push, body, FULL, FULL, 10000) == FULL);
    push.sequence += FULL;
    push.count = 0;
    push.length = 0;
    CHECK(empty > 150000 && send_many(fd, push, body, empty + 100, empty + 100, 200) == empty);
    CHECK((clock() - begin) / CLOCKS_PER_SEC < 4);
    ps_err err;
    CHECK(ps_client_tell(w.clients[0], PS_END_PASS, 0, &err) == PS_OK); /* now it is the turn of trainer 1 */
    send_all(&w, 0);
    push.sequence += empty + 100;
    push.flags = 0;
    CHECK(send_many(fd, push, body, 1, 101, 60000) == 101);
    close(fd);
    close_world(&w);
}

/* Return true if a stall is reported, with its text, while trainer `busy` reads rows at most `reads` times, a
 * millisecond apart. */
static bool hear_stall(world *w, uint32_t busy, int reads, char *text) {
    float got[KEYS * DIM];
    ps_event e;
    struct pollfd p = {.fd = w->events_fd, .events = POLLIN};
    for (int i = 0; i < reads; i++) {
        pull_all_rows(w, busy, got);
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
    char text[PS_EVENT_TEXT] = "";
    open_slow_world(&w, 3, 300);
    create_all(&w);
    CHECK(ps_client_use(w.clients[0], PS_PUSH, w.dense, &(ps_batch){1, 1}, grads[0], out[0], &err) == PS_OK);
    send_all(&w, 0);
    CHECK(hear_stall(&w, 2, 5000, text));
    CHECK(strncmp(text, "step 1 of 'w' waits for trainer 1", 33) == 0);
    close_world(&w);
}

TEST(an_older_step_that_waits_for_a_busy_trainer_does_not_hide_a_stall) {
    world w;
    ps_err err;
    char text[PS_EVENT_TEXT] = "";
    open_slow_world(&w, 3, 300);
    create_all(&w);
    CHECK(ps_client_use(w.clients[1], PS_PUSH, w.dense, &(ps_batch){1, 1}, grads[1], out[1], &err) == PS_OK);
    send_all(&w, 1);
    add_push(&w, 0);
    send_all(&w, 0);
    CHECK(hear_stall(&w, 2, 5000, text)); /* trainer 2 is missing from both, trainer 1 from the younger one */
    CHECK(strcmp(text, "step 1 of 'e' waits for trainer 1") == 0);
    close_world(&w);
}

TEST(a_trainer_that_is_busy_does_not_stall_the_pass) {
    world w;
    ps_err err;
    char text[PS_EVENT_TEXT] = "";
    open_slow_world(&w, 2, 700);
    create_all(&w);
    CHECK(ps_client_tell(w.clients[0], PS_END_PASS, 0, &err) == PS_OK);
    send_all(&w, 0);
    CHECK(!hear_stall(&w, 1, 1400, text));
    close_world(&w);
}
