#include <poll.h>

#include "world.h"

static uint64_t read_word(const world *w, uint32_t record, int word) {
    return ps_counter_get(&w->config.counters[record][word]);
}

static uint64_t of_trainer(const world *w, uint32_t t, int word) {
    return read_word(w, 1 + t, word);
}

static uint64_t of_object(const world *w, uint32_t object, int word) {
    return read_word(w, 1 + w->n + object, word);
}

TEST(steps_bytes_and_rows_are_counted) {
    world w;
    open_world(&w, 2);
    CHECK(read_word(&w, 0, PS_S_OBJECTS) == 0);
    create_all(&w);
    CHECK(read_word(&w, 0, PS_S_OBJECTS) == 2 && of_object(&w, w.dense, PS_O_UPDATES) == 0);
    uint64_t before = of_trainer(&w, 1, PS_T_IN_BYTES), out_before = of_trainer(&w, 1, PS_T_OUT_BYTES);
    for (int step = 0; step < 3; step++) push_from(&w, 0, 0);
    CHECK(of_object(&w, w.dense, PS_O_UPDATES) == 3 && of_object(&w, w.sparse, PS_O_UPDATES) == 3);
    CHECK(of_object(&w, w.sparse, PS_O_ROWS) == KEYS && of_object(&w, w.dense, PS_O_ROWS) == 0);
    CHECK(of_object(&w, w.dense, PS_O_UPDATE_AT) > 0 && of_object(&w, w.dense, PS_O_PUSHES) == 0);
    uint64_t in = 3 * (2 * PS_HEADER_BYTES + sizeof grads[0] + KEYS * (8 + 4 * DIM));
    uint64_t out_bytes = 3 * (2 * PS_HEADER_BYTES + sizeof out[0]);
    CHECK(of_trainer(&w, 1, PS_T_IN_BYTES) - before == in);
    CHECK(of_trainer(&w, 1, PS_T_OUT_BYTES) - out_before == out_bytes);
    CHECK(of_object(&w, w.dense, PS_O_BYTES) == sizeof(float) * SIZE);
    CHECK(of_object(&w, w.sparse, PS_O_BYTES) == KEYS * (8 + sizeof(float) * DIM));
    close_world(&w);
}

TEST(a_trainer_waits_until_the_others_have_pushed) {
    world w;
    open_world(&w, 2);
    create_all(&w);
    CHECK(of_trainer(&w, 0, PS_T_WAIT_AT) == 0 && of_trainer(&w, 1, PS_T_WAIT_AT) == 0);
    add_push(&w, 0);
    send_all(&w, 0);
    CHECK(of_trainer(&w, 0, PS_T_WAIT_AT) > 0 && of_trainer(&w, 1, PS_T_WAIT_AT) == 0);
    uint64_t waited = of_trainer(&w, 0, PS_T_WAITED_MS);
    connect_client(&w, 0); /* it waits again after the loss of its connection */
    send_all(&w, 0);
    CHECK(of_trainer(&w, 0, PS_T_WAIT_AT) > 0);
    poll(NULL, 0, 5);
    add_push(&w, 1);
    run_all(&w, 0);
    CHECK(of_trainer(&w, 0, PS_T_WAIT_AT) == 0 && of_trainer(&w, 0, PS_T_WAITED_MS) >= waited + 5);
    CHECK(of_trainer(&w, 1, PS_T_WAITED_MS) < of_trainer(&w, 0, PS_T_WAITED_MS));
    close_world(&w);
}

TEST(ages_and_dropped_pushes_are_counted) {
    world w;
    open_world(&w, 2);
    w.mode = PS_ASYNC;
    w.discard = 2;
    create_all(&w);
    uint64_t waited = of_trainer(&w, 1, PS_T_WAITED_MS); /* for the values of trainer 0 */
    for (uint32_t t = 0; t < 2; t++) ps_client_mark(w.clients[t], false);
    for (uint32_t t = 0; t < 2; t++) push_one(&w, t, 0); /* one after the other, from the same values */
    CHECK(of_object(&w, w.sparse, PS_O_PUSHES) == 2 && of_object(&w, w.sparse, PS_O_AGES) == 1);
    CHECK(of_object(&w, w.sparse, PS_O_DROPPED) == 0 && of_object(&w, w.sparse, PS_O_UPDATES) == 2);
    add_push(&w, 1); /* it has not looked at values since its mark */
    run_some(&w, 1, 0);
    CHECK(of_object(&w, w.dense, PS_O_DROPPED) == 1 && of_object(&w, w.sparse, PS_O_DROPPED) == 1);
    CHECK(of_object(&w, w.sparse, PS_O_AGES) == 3 && of_object(&w, w.sparse, PS_O_UPDATES) == 2);
    CHECK(of_trainer(&w, 1, PS_T_DROPPED) == 2 && of_trainer(&w, 0, PS_T_DROPPED) == 0);
    CHECK(of_trainer(&w, 1, PS_T_WAITED_MS) == waited);
    close_world(&w);
}
