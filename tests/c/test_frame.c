#include <string.h>

#include "harness.h"
#include "wire/ps_frame.h"

static const ps_header sample = {.op = PS_PUSH,
                                 .epoch = 3,
                                 .trainer = 7,
                                 .samples = UINT32_MAX,
                                 .factor = 0.1F,
                                 .sequence = 9,
                                 .object = 11,
                                 .flags = PS_WANT,
                                 .version = UINT64_C(1) << 40,
                                 .length = 4096,
                                 .count = 13};

static bool same(const ps_header *a, const ps_header *b) {
    return a->op == b->op && a->epoch == b->epoch && a->trainer == b->trainer && a->samples == b->samples &&
           a->factor == b->factor && a->sequence == b->sequence && a->object == b->object &&
           a->flags == b->flags && a->version == b->version && a->length == b->length && a->count == b->count;
}

TEST(header_survives_both_ways) {
    uint8_t buf[PS_HEADER_BYTES];
    ps_header h;
    ps_err err;
    ps_header_encode(&sample, buf);
    CHECK(ps_header_decode(buf, sizeof buf, &h, &err) == PS_HEADER_BYTES);
    CHECK(same(&h, &sample));
}

TEST(every_prefix_of_a_header_waits_for_more) {
    uint8_t buf[PS_HEADER_BYTES];
    ps_header h;
    ps_err err;
    ps_header_encode(&sample, buf);
    for (size_t n = 0; n < sizeof buf; n++) CHECK(ps_header_decode(buf, n, &h, &err) == PS_EAGAIN);
}

TEST(every_flipped_bit_of_a_header_is_an_error) {
    uint8_t buf[PS_HEADER_BYTES];
    ps_header h;
    ps_err err;
    for (size_t bit = 0; bit < 8 * sizeof buf; bit++) {
        ps_header_encode(&sample, buf);
        buf[bit / 8] = (uint8_t)(buf[bit / 8] ^ (1 << bit % 8));
        CHECK(ps_header_decode(buf, sizeof buf, &h, &err) == PS_EPROTO);
    }
}

static int64_t decode(ps_header h) {
    uint8_t buf[PS_HEADER_BYTES];
    ps_err err;
    ps_header_encode(&h, buf);
    return ps_header_decode(buf, sizeof buf, &h, &err);
}

TEST(lengths_are_compared_with_the_limit_of_the_operation) {
    for (uint16_t op = 0; op < 256; op++) {
        ps_header h = {.op = op, .length = ps_form_of(op).limit};
        bool known = strcmp(ps_op_name(op), "?") != 0;
        CHECK(decode(h) == (known ? PS_HEADER_BYTES : PS_EPROTO));
        h.length++;
        CHECK(decode(h) == PS_EPROTO);
        h.length = UINT64_MAX;
        CHECK(decode(h) == PS_EPROTO);
    }
}

TEST(numbers_above_limits_are_errors) {
    CHECK(decode((ps_header){.op = PS_PULL, .trainer = PS_MAX_TRAINERS}) == PS_EPROTO);
    CHECK(decode((ps_header){.op = PS_PULL, .object = PS_MAX_OBJECTS}) == PS_EPROTO);
    CHECK(decode((ps_header){.op = PS_PULL, .object = UINT32_MAX}) == PS_EPROTO);
}

TEST(only_a_push_has_samples_and_a_factor) {
    const float bad[] = {-1, (float)(1e300 * 1e300), -(float)(1e300 * 1e300)};
    for (int i = 0; i < 3; i++) CHECK(decode((ps_header){.op = PS_PUSH, .factor = bad[i]}) == PS_EPROTO);
    CHECK(decode((ps_header){.op = PS_PUSH_ROWS, .samples = 1, .factor = 0.5F}) == PS_HEADER_BYTES);
    CHECK(decode((ps_header){.op = PS_PULL, .factor = 1}) == PS_EPROTO);
    CHECK(decode((ps_header){.op = PS_PULL, .samples = 1}) == PS_EPROTO);
}

TEST(an_operation_has_only_its_own_flags) {
    for (uint16_t op = 1; op < 128; op++) {
        if (strcmp(ps_op_name(op), "?") == 0) continue;
        for (uint32_t flag = 1; flag != 0; flag <<= 1)
            CHECK((decode((ps_header){.op = op, .flags = flag}) < 0) == !(ps_form_of(op).flags & flag));
    }
    CHECK(decode((ps_header){.op = PS_PULL, .flags = PS_MORE}) == PS_EPROTO);
    CHECK(decode((ps_header){.op = PS_PUSH_ROWS, .flags = PS_MORE}) == PS_HEADER_BYTES);
}

static const ps_create table = {.sparse = 1,
                                .dim = 4,
                                .total = 100,
                                .optim = {PS_ADAM, 0.1F, 0.5F, 0.01F, 1, {0.9F, 0.99F, 1e-6F}},
                                .schedule = {PS_MANUAL, 2, 0, 0, {{1000, 1}, {5000, 0.5}}},
                                .mode = PS_ASYNC,
                                .discard = 6,
                                .entry = {PS_ENTRY_SHOW_CLICK, {10, 0.5F}},
                                .init = {.seed = 5, .table = 6, .kind = PS_INIT_UNIFORM, .mean = 2, .std = 1},
                                .name_length = 3,
                                .name = "emb"};

TEST(create_survives_both_ways_and_every_prefix_is_an_error) {
    uint8_t buf[PS_MAX_CREATE];
    char text[128];
    ps_create c;
    ps_err err;
    size_t n = ps_create_encode(&table, buf);
    CHECK(ps_create_decode(buf, n, &c, &err) == PS_OK);
    CHECK(ps_create_differs(&c, &table, text, sizeof text) == 0);
    for (size_t k = 0; k < n; k++) CHECK(ps_create_decode(buf, k, &c, &err) == PS_EPROTO);
}

TEST(every_flipped_bit_of_create_is_an_error_or_a_difference) {
    uint8_t buf[PS_MAX_CREATE];
    char text[128];
    ps_create c;
    ps_err err;
    size_t n = ps_create_encode(&table, buf);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        bool table_id = bit >= 8 * 108 && bit < 8 * 116; /* follows from the name, which is compared */
        ps_create_encode(&table, buf);
        buf[bit / 8] = (uint8_t)(buf[bit / 8] ^ (1 << bit % 8));
        bool read = ps_create_decode(buf, n, &c, &err) == PS_OK;
        CHECK(table_id || !read || ps_create_differs(&c, &table, text, sizeof text) == 1);
    }
}

TEST(methods_of_rows_and_of_whole_parameters_are_refused_for_the_others) {
    uint8_t buf[PS_MAX_CREATE];
    ps_create c, rows = {.sparse = 1, .dim = 4, .total = 9, .name_length = 1, .name = "w"};
    ps_create dense = {.size = 4, .total = 9, .name_length = 1, .name = "w"};
    ps_err err;
    rows.optim = dense.optim = (ps_optim){.method = PS_LAMB, .learning_rate = 1};
    CHECK(ps_create_decode(buf, ps_create_encode(&dense, buf), &c, &err) == PS_OK);
    CHECK(ps_create_decode(buf, ps_create_encode(&rows, buf), &c, &err) == PS_EPROTO);
    CHECK(strstr(err.text, "optimizer lamb of a table, but it has dense parameters alone") != NULL);
    rows.optim.method = dense.optim.method = PS_ROW_ADAGRAD;
    CHECK(ps_create_decode(buf, ps_create_encode(&rows, buf), &c, &err) == PS_OK);
    CHECK(ps_create_decode(buf, ps_create_encode(&dense, buf), &c, &err) == PS_EPROTO);
    CHECK(strstr(err.text, "optimizer row_adagrad of a dense parameter, but it has rows") != NULL);
}

TEST(rows_per_frame_fit_the_limit) {
    for (uint32_t dim = 1; dim <= PS_MAX_DIM; dim = dim * 3 + 1) {
        size_t n = ps_rows_per_frame(dim);
        CHECK(n >= 1 && n * (8 + 4 * (size_t)dim) <= PS_MAX_ROW_FRAME);
    }
}
