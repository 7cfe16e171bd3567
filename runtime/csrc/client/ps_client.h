/* A trainer's side of the data plane: one connection to each shard, requests scattered over them,
 * answers gathered, straight from and to the caller's arrays, without a thread. A call is
 * built from requests, then begun; several may be on their way, each with its own requests and arrays. If a
 * connection breaks, it is named; after a new one is attached, unanswered requests are sent again, and the
 * shards recognise them. Knows no Python. One thread at a time. */
#ifndef PS_CLIENT_H
#define PS_CLIENT_H

#include "client/ps_request.h"

/* Make a client of `shards` shards without connections in *out. PS_OK, PS_EINVAL or PS_ENOMEM. */
int ps_client_new(ps_client **out, uint32_t shards, uint32_t epoch, uint32_t trainer, ps_err *err);

/* Close all connections and release `c`. NULL is allowed. Can't fail. */
void ps_client_free(ps_client *c);

/* Take over a connected and authenticated socket for a shard. Unanswered requests are sent
 * again. PS_OK, PS_EINVAL or PS_ESYS; fd is closed on failure. */
int ps_client_attach(ps_client *c, uint32_t shard, int fd, ps_err *err);

/* Close the connection to a shard. Can't fail. */
void ps_client_detach(ps_client *c, uint32_t shard);

/* Add a dense object of spec->total floats with its pieces, or a table on the shards of its pieces, which
 * have no floats, and the requests that create it. Pieces are in the order of shards, each of which has at
 * most one of a table. *id is its number, from 0, in the order of creation. PS_OK, PS_EINVAL or PS_ENOMEM. */
int ps_client_create(ps_client *c, const ps_create *spec, const ps_piece *pieces, size_t n, uint32_t *id,
                     ps_err *err);

/* The following functions add requests to the call being built. Arrays are borrowed until that call is done,
 * or until ps_client_clear(). All return PS_OK, PS_EINVAL or PS_ENOMEM; after an error cancel the call, and
 * the client can be used again. */

/* Add a request on a dense object. INIT: set its initial values to `from`; NULL: wait until trainer 0 has set
 * them. PULL: read its values to `to`. PUSH: push the gradient `from`. Synchronous: for its next step,
 * answered when that is complete; no push of it may be on its way. Else: computed from the values at the
 * mark, answered when it is applied, or dropped. to: its new values; NULL: none. batch: of a push. */
int ps_client_use(ps_client *c, uint16_t op, uint32_t id, const ps_batch *batch, const float *from, float *to,
                  ps_err *err);

/* Add a request on a table, with keys: [n]; n may be 0. SET_ROWS: set their rows. PUSH_ROWS: push gradients
 * of them, likewise, [n, ps_push_floats()]. PULL_ROWS: write their rows, in their order, to `rows`. After a
 * synchronous push of the table that has no answer yet they are those after its step: add such reads after
 * all pushes of the step. */
int ps_client_use_rows(ps_client *c, uint16_t op, uint32_t id, const ps_batch *batch, const uint64_t *keys,
                       size_t n, float *rows, ps_err *err);

/* Decay counts of a table with an entry rule, and give back rows: ps_shrink in ps_entry.h. Of trainer 0. */
int ps_client_shrink(ps_client *c, uint32_t id, const ps_shrink *how, ps_err *err);

/* Note that the next gradients are computed from the values read last and, of tables, the rows read since the
 * mark before. `more`: they are added to those of the mark before, and the push is as old as that. Can't
 * fail. */
void ps_client_mark(ps_client *c, bool more);

/* Add END_PASS or FINISH to every shard, or BARRIER to the first; `number` is that of the pass or the
 * barrier. */
int ps_client_tell(ps_client *c, uint16_t op, uint64_t number, ps_err *err);

/* Ask all shards for a cut with these flags, now or after the next step, whose pushes follow. Trainer 0's. */
int ps_client_cut(ps_client *c, bool now, uint32_t flags, ps_err *err);

/* Return the last step with a cut, as far as this trainer has asked for it or answers to pushes have it; 0:
 * none. */
uint64_t ps_client_cut_step(const ps_client *c);

/* Forget the call being built: it leaves no trace. Can't fail. */
void ps_client_cancel(ps_client *c);

/* Return the number of the call being built, from 1. */
uint64_t ps_client_building(const ps_client *c);

/* Begin the call that was built; return its number. Nothing is sent yet. Can't fail. */
uint64_t ps_client_begin(ps_client *c);

/* Return true if a call that has begun is complete: all of its requests are answered. */
bool ps_client_done(const ps_client *c, uint64_t call);

/* Send what the connections take at once, and receive what is there: one system call if there is nothing.
 * PS_OK, or an error as of ps_client_run(). */
int ps_client_progress(ps_client *c, uint32_t *shard, ps_err *err);

/* Begin the call being built, if any; then send and receive until `call`, 0: every call, is complete: PS_OK.
 * PS_EAGAIN after timeout_ms, or a signal: call again. PS_ECONN: *shard has no connection (err has the
 * cause). PS_EREMOTE: *shard refused, with its text. PS_EPROTO: *shard sent invalid bytes. */
int ps_client_run(ps_client *c, int timeout_ms, uint64_t call, uint32_t *shard, ps_err *err);

/* Return true if all requests to this shard were sent whole, on any connection. */
int ps_client_sent(const ps_client *c, uint32_t shard);

/* Stop waiting for answers of this shard. Can't fail. */
void ps_client_let_go(ps_client *c, uint32_t shard);

/* Return a shard with unanswered requests, or the number of shards. */
uint32_t ps_client_waits_for(const ps_client *c);

/* Clear all calls. Requests without a sent byte leave no trace. Those sent but not
 * answered make their connections unusable: these are closed. Can't fail. */
void ps_client_clear(ps_client *c);

/* Return the description of an object, borrowed until the next one is added; zeros for an unknown id. */
const ps_create *ps_client_spec(const ps_client *c, uint32_t id);

/* Return the rows of a table that shrinking has given back so far, as far as answers have it. */
uint64_t ps_client_shrunk(const ps_client *c, uint32_t id);

/* Return the version of an object on a shard, as far as answers have it; 0 for unknown ones. */
uint64_t ps_client_version(const ps_client *c, uint32_t id, uint32_t shard);

/* Return the pushes of an object that came too late, counted by shard. */
uint64_t ps_client_dropped(const ps_client *c, uint32_t id);

#endif
