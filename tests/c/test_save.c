#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"
#include "ps_save.h"

static void digest_hex(ps_isa isa, const char *text, size_t n, size_t piece, char *hex) {
    ps_sha256 s;
    uint8_t digest[PS_SHA256_BYTES];
    ps_sha256_init_isa(&s, isa);
    for (size_t at = 0; at < n; at += piece) ps_sha256_add(&s, text + at, n - at < piece ? n - at : piece);
    ps_sha256_end(&s, digest);
    for (size_t i = 0; i < sizeof digest; i++) sprintf(hex + 2 * i, "%02x", digest[i]);
}

/* The messages of FIPS 180-4's examples. */
TEST(sha256_of_the_standard) {
    const struct {
        const char *text, *hex;
    } known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    char hex[2 * PS_SHA256_BYTES + 1];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        digest_hex(PS_ISA_BASE, known[i].text, strlen(known[i].text), 1000, hex);
        CHECK(strcmp(hex, known[i].hex) == 0);
        digest_hex(PS_ISA_BEST, known[i].text, strlen(known[i].text), 1000, hex);
        CHECK(strcmp(hex, known[i].hex) == 0);
    }
}

TEST(sha256_does_not_depend_on_pieces_and_instructions) {
    char text[200], whole[2 * PS_SHA256_BYTES + 1], cut[sizeof whole];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)harness_random();
    for (size_t n = 0; n <= sizeof text; n++) {
        digest_hex(PS_ISA_BASE, text, n, sizeof text + 1, whole);
        for (size_t piece = 1; piece < 200; piece += 9) {
            digest_hex(PS_ISA_BEST, text, n, piece, cut);
            CHECK(strcmp(whole, cut) == 0);
        }
    }
}

/* A dense object of 5 values without state and a table with a row, AdaGrad. */
static void make_objects(ps_object **objects) {
    ps_err err;
    const float grad[5] = {1, 2, 3, 4, 5};
    const uint64_t key = 77;
    ps_create dense = {.size = 5, .total = 5, .optim = {.method = PS_SGD, .learning_rate = 1}},
              table = {.sparse = 1, .dim = 3, .optim = {.method = PS_ADAGRAD, .learning_rate = 1}};
    dense.name_length = (uint32_t)sprintf(dense.name, "w");
    table.name_length = (uint32_t)sprintf(table.name, "table");
    CHECK(ps_object_new(&objects[0], &dense, 0, 1, &err) == PS_OK);
    CHECK(ps_object_new(&objects[1], &table, 0, 1, &err) == PS_OK);
    ps_dense_apply(&objects[0]->dense, 1, 0, grad, 5);
    ps_dense_commit(&objects[0]->dense, 1);
    CHECK(ps_sparse_add(objects[1]->sparse, &key, grad, 1, &err) == PS_OK);
    ps_object_commit(objects[1]);
}

static void free_objects(ps_object **objects) {
    ps_object_free(objects[0]);
    ps_object_free(objects[1]);
}

TEST(a_saved_shard_has_its_values_and_digest) {
    ps_object *objects[2];
    uint8_t buffer[64], data[4096], digest[PS_SHA256_BYTES];
    ps_err err;
    ps_sha256 sha;
    FILE *f = tmpfile();
    int fd = fileno(f);
    make_objects(objects);
    CHECK(write(fd, "a header of 24 bytes....", 24) == 24);
    CHECK(ps_save_objects(fd, objects, 2, buffer, sizeof buffer, &err) == PS_EINVAL);
    CHECK(strstr(err.text, "'w' has no values") != NULL);
    objects[0]->dense.ready = true;
    CHECK(ps_save_objects(fd, objects, 2, buffer, sizeof buffer, &err) == PS_OK);

    size_t n = (size_t)pread(fd, data, sizeof data, 0), w = 24 + 32 + 132 + 4, table = w + 24;
    CHECK(n == table + 32 + 132 + 12 + 8 + 24 + sizeof digest);
    float last, state;
    memcpy(&last, data + w + 16, 4);
    memcpy(&state, data + table + 32 + 132 + 12 + 8 + 12, 4);
    CHECK(last == -5);
    CHECK(state == 1);
    CHECK(data[table + 8] == 1); /* steps */
    CHECK(data[table + 32 + 132 + 12] == 77);
    ps_sha256_init(&sha);
    ps_sha256_add(&sha, data, n - sizeof digest);
    ps_sha256_end(&sha, digest);
    CHECK(memcmp(digest, data + n - sizeof digest, sizeof digest) == 0);

    CHECK(data[24] == 0);
    ps_dense_apply(&objects[0]->dense, 1, 0, &last, 1);
    CHECK(lseek(fd, 24, SEEK_SET) == 24);
    CHECK(ps_save_objects(fd, objects, 2, buffer, sizeof buffer, &err) == PS_OK);
    CHECK(pread(fd, data, 25, 0) == 25);
    CHECK(data[24] == PS_SAVE_TORN);
    free_objects(objects);
    fclose(f);
}

TEST(a_file_that_takes_no_more_is_an_error) {
    ps_object *objects[2];
    uint8_t buffer[64];
    ps_err err;
    int pipes[2];
    make_objects(objects);
    objects[0]->dense.ready = true;
    CHECK(ps_save_objects(-1, objects, 2, buffer, sizeof buffer, &err) == PS_ESYS);
    CHECK(pipe(pipes) == 0);
    CHECK(ps_save_objects(pipes[1], objects, 2, buffer, sizeof buffer, &err) == PS_ESYS);
    close(pipes[0]);
    close(pipes[1]);
    free_objects(objects);
}
