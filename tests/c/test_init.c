#include <math.h>
#include <string.h>

#include "harness.h"
#include "tables/ps_init.h"

static const ps_init some = {.seed = 1, .table = 2, .kind = PS_INIT_NORMAL, .mean = 0, .std = 1};

TEST(init_depends_on_its_four_alone) {
    float a[9], b[9];
    ps_init_row(&some, 7, a, 9);
    ps_init_row(&some, 7, b, 5);
    CHECK(memcmp(a, b, 5 * sizeof *a) == 0);
    ps_init_row(&some, 8, b, 9);
    CHECK(memcmp(a, b, sizeof a) != 0);
    ps_init other = some;
    other.seed = 2;
    ps_init_row(&other, 7, b, 9);
    CHECK(memcmp(a, b, sizeof a) != 0);
    other = some, other.table = 1;
    ps_init_row(&other, 7, b, 9);
    CHECK(memcmp(a, b, sizeof a) != 0);
}

/* The same numbers as in tests/unit/runtime/test_kernels.py, on every machine. */
TEST(init_never_changes) {
    const float normal[] = {0.1837158203125F, 0.06488037109375F, 0.260406494140625F, 1.411163330078125F},
                uniform[] = {0.5597113370895386F, 0.5898596048355103F, 0.7888609170913696F,
                             0.5399359464645386F};
    ps_init init = {.seed = 1, .table = ps_table_id("w", 1), .kind = PS_INIT_NORMAL, .mean = 0, .std = 1};
    float row[4];
    ps_init_row(&init, 0, row, 2);
    ps_init_row(&init, 1, row + 2, 2);
    CHECK(memcmp(row, normal, sizeof row) == 0);
    init.kind = PS_INIT_UNIFORM;
    ps_init_row(&init, 0, row, 2);
    ps_init_row(&init, 1, row + 2, 2);
    CHECK(memcmp(row, uniform, sizeof row) == 0);
}

TEST(init_stays_in_its_bounds) {
    ps_init init = some;
    float row[64];
    float top = 0;
    for (init.kind = 0; init.kind < PS_INIT_KINDS; init.kind++) {
        for (uint64_t key = 0; key < 2000; key++) {
            ps_init_row(&init, harness_random(), row, 64);
            for (int i = 0; i < 64; i++) top = fmaxf(top, fabsf(row[i]));
        }
        if (init.kind == PS_INIT_NORMAL) CHECK(top > 3.5F && top <= 6);
        else CHECK(top > 0.99F && top < 1);
        top = 0;
    }
}

TEST(init_constant_is_exact) {
    ps_init init = {.kind = PS_INIT_UNIFORM, .mean = 0.3F, .std = 0};
    float row[5];
    ps_init_row(&init, 3, row, 5);
    for (int i = 0; i < 5; i++) CHECK(row[i] == 0.3F);
}

TEST(init_check_names_what_is_wrong) {
    ps_err err;
    ps_init init = some;
    CHECK(ps_init_check(&init, &err) == PS_OK);
    init.kind = 2;
    CHECK(ps_init_check(&init, &err) == PS_EINVAL && strstr(err.text, "kind 2") != NULL);
    init = some, init.std = -1;
    CHECK(ps_init_check(&init, &err) == PS_EINVAL && strstr(err.text, "std -1") != NULL);
    init = some, init.mean = NAN;
    CHECK(ps_init_check(&init, &err) == PS_EINVAL && strstr(err.text, "mean") != NULL);
}

TEST(init_table_id_is_fnv1a) {
    CHECK(ps_table_id("", 0) == 0xcbf29ce484222325U);
    CHECK(ps_table_id("foobar", 6) == 0x85944171f73967e8U);
}

TEST(init_mix64_is_splitmix64) {
    CHECK(ps_mix64(0x9e3779b97f4a7c15U) == 0xe220a8397b1dcdafU); /* its first number for the seed 0 */
}
