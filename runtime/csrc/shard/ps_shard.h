/* One shard: one port, one thread, one epoll loop, its own objects, no locks. It gets only
 * authenticated sockets, through a pipe, and reports to its owner through
 * another, both in records of fixed size. */
#ifndef PS_SHARD_H
#define PS_SHARD_H

#include "shard/ps_mail.h"

/* Serve until the mailbox says stop or is closed; then close all connections, and save if requested.
 * Blocks; needs no Python. Returns PS_OK, or the error that prevented serving or saving. */
int ps_shard_run(const ps_shard_config *config, ps_err *err);

#endif
