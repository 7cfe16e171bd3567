/* A shard in a thread of its own and clients over loopback: both ends of the protocol at once. */
#ifndef WORLD_H
#define WORLD_H

#include <pthread.h>

#include "harness.h"
#include "client/ps_client.h"
#include "shard/ps_mail.h"

enum { SIZE = 200000, DIM = 3, KEYS = 50, MOST = 3 };

/* One shard and its clients. */
typedef struct world {
    ps_shard_config config;
    int mail_fd, events_fd, cuts_fd;
    int code;
    pthread_t thread;
    uint32_t n;
    uint32_t mode, discard; /* of the objects that create_all() makes */
    ps_client *clients[MOST];
    uint32_t dense, sparse;
} world;

/* The arrays of the clients. */
extern float grads[MOST][SIZE], out[MOST][SIZE], rows[MOST][KEYS * DIM];
extern uint64_t keys[KEYS];

/* Make two ends of a TCP connection. */
void connect_pair(int pair[2]);

/* Return a connection to the shard as the trainer of this number. */
int dial(world *w, uint32_t trainer);

/* Connect a client, again if it was connected. */
void connect_client(world *w, uint32_t t);

/* Start a shard and connect n clients. Waits that are longer than stall_after_ms are reported. */
void open_slow_world(world *w, uint32_t n, int64_t stall_after_ms);
void open_world(world *w, uint32_t n);

/* Likewise, with a pipe for cuts. */
void open_cut_world(world *w, uint32_t n);

/* End the clients and the shard, which is without an error. */
void close_world(world *w);

/* Run the calls of clients [from, n) by turns until all are done; each is cut `cuts` times on the way. */
void run_some(world *w, uint32_t from, int cuts);
void run_all(world *w, int cuts);

/* Run the call of one client alone, cut `cuts` times on the way. */
void run_one(world *w, uint32_t t, int cuts);

/* Send the call of one client, which waits for others. */
void send_all(world *w, uint32_t t);

/* Make a dense object and a table, SGD with the rate 1, and set the values to 0. */
void create_all(world *w);

/* Add a push of t + 1 everywhere to the call of the client t. */
void add_push(world *w, uint32_t t);

/* Push from one client alone, or from the clients [from, n). */
void push_one(world *w, uint32_t t, int cuts);
void push_from(world *w, uint32_t from, int cuts);

/* Read all rows of the table into got, [KEYS * DIM]. */
void pull_all_rows(world *w, uint32_t t, float *got);

/* Check that the client t has these values everywhere, and reads these rows. */
void check_values(world *w, uint32_t t, float expected);

/* Write a header, and a body of its length from `body`, as far as the socket takes it. */
void send_frame(int fd, ps_header h, const uint8_t *body);

/* Read until the other side closes or n bytes are there. Returns their number. */
size_t listen_to(int fd, uint8_t *buf, size_t n);

#endif
