"""The pserver program: listens, greets trainers, and passes them to its shards, one thread per port.

`python -m pslaunch.runtime.pserver --port=7164 --num_gradient_servers=2`. This thread decides and
reports; the compiled core (csrc/shard/ps_shard.c) does the training. Needs no numpy.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..client import handshake
from ..files import saving
from ..process.infolog import InfoLog, open_server_log
from ..process.progress import Progress
from ..shared import busyport, env, nics
from ..shared.strangers import CROWD, Stranger, Strangers
from . import ports, threads
from .counters import Tables, collect_stats
from .cuts import NO_TRAINER, Asker, Cuts
from .grace import GraceWatch
from .pserver_options import Options, parse_options
from .roster import Roster
from .threads import Loaded, Shard

EX_USAGE, EX_UNAVAILABLE, EX_IOERR, EX_TEMPFAIL, EX_CONFIG = 2, 69, 74, 75, 78
EX_TERM = 128 + signal.SIGTERM

TICK_S = 0.5
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # accept() would fail again at once
REST_S = 0.5
FOREIGN_S = 2.0  # a trainer of another job may connect by mistake; ours would connect within this time


def open_ports(options: Options) -> list[list[socket.socket]]:
    """Return the listening sockets of each port, one per interface. Raises PortError, EnvError."""
    if options.descriptors:
        return [[sock] for sock in ports.adopt(options.descriptors)]
    hosts = [nics.get_address(n, "--nics: ") for n in options.nics] or [options.host]
    return [[ports.listen(h, options.port + i) for h in hosts] for i in range(options.ports)]


class Pserver:
    """One pserver process, from open ports to its exit code."""

    def __init__(
        self,
        options: Options,
        listeners: Sequence[Sequence[socket.socket]],
        log: InfoLog,
        loaded: Loaded | None = None,
    ) -> None:
        self._options, self._log = options, log
        self._listeners = [(i, sock) for i, sockets in enumerate(listeners) for sock in sockets]
        self._roster = Roster(options.num_gradient_servers, options.ports, options.trainer_timeout_s)
        self._place = loaded.place if loaded else None  # index in the list of pservers, and its length
        shares = loaded.shares if loaded else [None] * options.ports
        least_s = min((s for s in (options.stall_after_s, options.stall_timeout_s) if s), default=0.0)
        self._wakes = os.pipe()  # from other threads and the handler of TERM
        os.set_blocking(self._wakes[1], False)
        self._shards = [
            Shard(i, options, least_s, share, self._make_header, self._wake) for i, share in enumerate(shares)
        ]
        self._stalls: dict[int, tuple[float, int, str]] = {}  # shard -> since when, trainer, text
        words = [shard.counters for shard in self._shards]
        self.collect: Callable[[], Tables] = lambda: collect_stats(options, self._roster, words, self._stalls)
        self._cuts = Cuts(options, self._shards, lambda: self._make_header(0, ""), self._wake, self.collect)
        self._selector = selectors.DefaultSelector()
        self._strangers = Strangers(self._watch, self._report_stranger, note_failure=self._handle_foreign)
        self._crowded = False  # strangers have taken all places before
        self._resting: dict[socket.socket, tuple[Callable[[], object], float]] = {}  # listeners: until when
        self._present = -1
        self._met = False  # a trainer of this job has connected
        self._loaded = loaded.digest if loaded else ""
        self._term = False  # set by TERM's handler, which may do nothing else
        self._code: int | None = None
        self._foreign: tuple[float, str] | None = None  # since when, text
        self._guessed = False
        self._grace: GraceWatch | None = None
        if options.save_dir is not None and options.grace_s is not None:
            self._grace = GraceWatch(options.save_dir, options.grace_s)
        self._progress = Progress(os.environ.get("PSLAUNCH_PROGRESS", ""))

    def _wake(self) -> None:
        """Let the loop go on: there are new parts, or answers. Called by other threads."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wakes[1], b"x")

    # -- reporting

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads any more; that is no reason to end
            print(line, flush=True)
        self._log.info(line)

    def _report_stranger(self, stranger: Stranger | None, why: str) -> None:
        """Report why a connection is refused or dropped, or how many further ones were."""
        aloud, text = False, why
        if stranger is not None:
            aloud = bool(stranger.server.failure)
            text = f"refused {stranger.addr}: {why}" if aloud else f"{stranger.addr} dropped: {why}"
        if why == CROWD and not self._crowded:
            self._crowded = aloud = True
            text += "; connections of strangers may delay trainers"
        self._say(text) if aloud else self._log.info(text)

    def _end(self, code: int, why: str, blames: str = "") -> None:
        if self._code is not None:
            return
        self._code = code
        if why:
            with contextlib.suppress(OSError):
                print(f"pslaunch pserver: {why}", file=sys.stderr, flush=True)
            self._log.info(why)
        if code not in (0, EX_TERM):
            self._progress.report_reason(why, blames)

    def _announce(self) -> None:
        open_beyond = set()
        for _, sock in self._listeners:
            host, port = sock.getsockname()[:2]
            self._say(f"Server listening on {env.join_addr(host, port)} selected port: {port}")
            if not nics.is_loopback(host):
                open_beyond.add(host)
        if open_beyond and not self._options.secret:
            self._say(
                "no secret (option --secret_file, variable PADDLE_INIT_SECRET_FILE): anybody who can reach "
                f"{', '.join(sorted(open_beyond))} can read and change the parameters and files"
            )

    # -- serving

    def serve(self) -> int:
        """Serve until all trainers have finished or an error ends it; return the exit code.

        With a folder to save to, also until TERM.
        """
        for i, sock in self._listeners:
            sock.setblocking(False)
            self._watch(sock, functools.partial(self._handle_connection, sock, i))
        self._watch(self._wakes[0], lambda: os.read(self._wakes[0], 64))  # consume what woke it
        for i, shard in enumerate(self._shards):
            self._watch(shard.events, functools.partial(self._handle_events, i, shard.take_events))
        try:
            with self._watch_term():
                self._announce()
                self._say_present()
                while self._code is None:
                    for key, _ in self._selector.select(TICK_S):
                        key.data()
                    self._tick(time.monotonic())
                self._stop()
            return self._code
        finally:
            self._selector.close()

    def _watch(self, source: int | socket.socket, act: Callable[[], object] | None) -> None:
        if act is None:
            self._selector.unregister(source)
        else:
            self._selector.register(source, selectors.EVENT_READ, act)

    @contextlib.contextmanager
    def _watch_term(self) -> Iterator[None]:
        """Treat TERM as a normal end if there is a folder to save to; otherwise leave its default."""
        if self._options.save_dir is None or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
            yield
            return
        signal.set_wakeup_fd(self._wakes[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_term", True))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)

    # -- ending

    def _stop(self) -> None:
        """Close everything and end the shards, which save first if necessary."""
        self._strangers.close()
        self._strangers.report_sums(float("inf"))
        self._cuts.close()
        for _, sock in self._listeners:
            sock.close()
        o = self._options
        saves = o.save_dir is not None and 0 in self._roster.trainers and self._code in (0, EX_TERM)
        shards, self._shards = self._shards, []
        for shard in shards:
            shard.stop(o.save_dir if saves else None)
        for i, shard in enumerate(shards):
            self._handle_events(i, shard.join)
        try:
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(contextlib.closing(one.file)) for one in shards if one.file]
                self._place_files(files, [shard.failure for shard in shards] if saves else [])
        except OSError as e:
            self._code = None
            self._end(EX_IOERR, str(e))

    def _make_header(self, port: int, save: str) -> saving.Header:
        """Return the header of a port's part; trainer 0 is known. Called by shards too."""
        o, place = self._options, self._place
        assert place is not None  # from the first trainer's connection on
        return saving.Header(
            job_id=o.job.job_id,
            epoch=o.job.epoch,
            run=self._roster.trainers[0].incarnation,
            pserver=place[0],
            pservers=place[1],
            port=port,
            ports_num=o.ports_num,
            ports_num_for_sparse=o.ports_num_for_sparse,
            num_gradient_servers=o.num_gradient_servers,
            finished=self._code == 0,
            save=save,
        )

    def _place_files(self, files: Sequence[saving.File], failures: Sequence[BaseException | None]) -> None:
        """Move the saved files into place and report it. Raises OSError."""
        folder = self._options.save_dir
        if folder is None:
            return
        try:
            n = saving.place_all(files, failures)
        except ValueError as e:
            self._say(f"nothing is saved in {folder}: {e}")
            return
        if n:
            self._say(f"saved the parameters of {n} port{'s' * (n > 1)} in {folder}")
        elif self._code in (0, EX_TERM):
            self._say(f"nothing is saved in {folder}: no trainer has made parameters")

    def _handle_connection(self, listener: socket.socket, port: int) -> None:
        if not (self._strangers.has_room or self._strangers.drop_one()):
            self._pause_listener(listener)  # waiting connections are served in turn, flood or not
            return
        try:
            sock, name = listener.accept()
        except OSError as e:
            if e.errno in EXHAUSTED and not self._strangers.drop_one():
                self._log.info(f"accepting no connections for {REST_S:g} s: {e.strerror}")
                self._pause_listener(listener)
            return
        addr, me = (env.join_addr(*end[:2]) for end in (name, sock.getsockname()))
        side = handshake.make_side(
            self._options.secret, lambda hello: self._accept(hello, port, addr, me), self._loaded
        )
        self._strangers.take(sock, name, side, lambda: self._admit(sock, side.text, port, addr))

    def _pause_listener(self, listener: socket.socket) -> None:
        self._resting[listener] = self._selector.unregister(listener).data, time.monotonic() + REST_S

    def _accept(self, hello: handshake.Hello, port: int, addr: str, me: str) -> str:
        o = self._options
        place = self._place or (hello.pserver, hello.pservers)
        ours = replace(
            hello,
            num_gradient_servers=o.num_gradient_servers,
            ports_num=o.ports_num,
            ports_num_for_sparse=o.ports_num_for_sparse,
            epoch=o.job.epoch,
            pserver=place[0],
            pservers=place[1],
            shard=o.ports if port == 0 and hello.shard == o.ports else port,
        )
        listing = "by which it has loaded values" if self._loaded else "of another trainer"
        why = handshake.compare(hello, ours, me, listing) or self._roster.admit(
            hello.trainer_id, hello.incarnation, addr
        )
        if not why:
            self._place = place
        return why

    def _admit(self, sock: socket.socket, text: bytes, port: int, addr: str) -> None:
        """Take over the connection of a trainer or an observer, who has proved this text."""
        hello = handshake.read_hello(text)
        if hello is None or hello.shard == self._options.ports:  # behind the last shard
            asker = self._cuts.add(sock, NO_TRAINER if hello is None else hello.trainer_id)
            self._watch(sock, functools.partial(self._hear, asker))
        else:
            self._roster.trainers[hello.trainer_id].addr = addr
            self._shards[port].deliver(sock, hello.trainer_id, hello.incarnation)

    def _hear(self, asker: Asker) -> None:
        if not self._cuts.hear(asker):
            self._selector.unregister(asker.control.sock)

    def _handle_foreign(self, stranger: Stranger) -> None:
        """Handle a program with its own protocol: evidence if it is our user's, else a guess.

        Anybody can send a few bytes; only our own user's program shows the job's kind.
        """
        if not (protocol := handshake.find_foreign(stranger.server.buffer)):
            return
        speaks = f"{stranger.addr} speaks {protocol}, not pslaunch's protocol"
        is_near = nics.is_loopback(stranger.host) or stranger.host in self._options.job.nodes
        if self._foreign is None and busyport.find_user(stranger.sock) == os.geteuid():
            why = "the program brings its own parameter server; start the job with --server script"
            self._foreign = time.monotonic(), f"{speaks}: {why}"
        elif not self._met and not self._guessed and is_near:
            self._guessed = True
            guess = f"{speaks}: if it is a program of this job, start the job with --server script"
            self._say(guess)
            self._progress.report_reason(guess)

    # -- events of the shards

    def _handle_events(self, shard: int, take: Callable[[], Iterable[threads.Event]]) -> None:
        for event in take():
            self._handle_event(shard, *event)

    def _handle_event(self, shard: int, kind: int, trainer: int, number: int, text: str) -> None:
        port = f"port {shard}"
        if kind == threads.CONNECTED:
            self._roster.note_connected(trainer, shard)
            self._log.info(f"trainer {trainer} at {self._roster.trainers[trainer].addr} connected to {port}")
            self._say_present()
        elif kind == threads.GONE:
            if self._roster.note_lost(trainer, shard, time.monotonic()):
                self._log.info(f"trainer {trainer} lost at {port}: {text}")
                self._say_present()
        elif kind == threads.FINISHED:
            self._roster.note_finished(trainer, shard)
            self._log.info(f"trainer {trainer} finished at {port}")
        elif kind == threads.STALLED:
            self._stalls[shard] = (time.monotonic() - number / 1000, trainer, text)
            self._say(f"{text} for {number / 1000:.0f} s")
        elif kind == threads.RESUMED:
            self._stalls.pop(shard, None)
            self._say(f"{port} continues after {number / 1000:.0f} s")
        elif kind == threads.ERROR:
            self._say(f"refused trainer {trainer} at {port}: {text}")
        elif kind == threads.STATS:
            self._log.info(f"{port} {text}")
            rows = [one.counters.read(1, t) for one in self._shards for t in self._roster.trainers]
            totals = {n: sum(int(row[n] or 0) for row in rows) for n in ("in_bytes", "out_bytes")}
            self._progress.report(**totals)
            if self._grace and self._code is None:
                self._grace.note_size(shard, number)
        elif kind == threads.DROPPED:
            late = f"dropped {number} pushes of '{text}' from trainer {trainer}: they came too late"
            self._log.info(f"{port} {late}")

    def _say_present(self) -> None:
        present, expected = self._roster.present, self._options.num_gradient_servers
        if present and not self._met:
            self._met = True
            self._progress.report_state("connected")
        if present != self._present:
            self._present = present
            self._say(f"{present} of {expected} trainers connected (num_gradient_servers counts trainers)")

    def _tick(self, now_s: float) -> None:
        self._strangers.tick()
        for listener, (accept, until_s) in list(self._resting.items()):
            if now_s >= until_s:
                del self._resting[listener]
                self._watch(listener, accept)
        for i, shard in enumerate(self._shards):
            if shard.failure is not None:
                self._end(EX_IOERR, f"port {i} can't continue: {shard.failure}")
        if self._foreign and not self._met and now_s - self._foreign[0] >= FOREIGN_S:
            self._end(EX_CONFIG, self._foreign[1])
        if self._grace and self._code is None and (text := self._grace.find_warning()):
            self._say(text)
        if self._roster.all_finished:
            self._say("all trainers finished")
            self._progress.report_state("finished")
            self._end(0, "")
        self._cuts.answer_waiting()
        if self._term:
            self._end(EX_TERM, "TERM: saving")
        if why := self._roster.find_failure(now_s):
            self._end(EX_TEMPFAIL, why)
        for since_s, trainer, text in list(self._stalls.values()):
            limit_s = self._options.stall_timeout_s
            if limit_s is not None and now_s - since_s >= limit_s:
                why = f"{text} for {now_s - since_s:.0f} s (option --stall_timeout)"
                self._end(EX_TEMPFAIL, why, f"{env.TRAINER}/{trainer}")


def main(argv: Sequence[str] | None = None, loaded: Loaded | None = None) -> int:
    """Run the program; return its exit code. `loaded`: values in place of trainer 0's."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background process ignores INT
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no exception needed: nothing to clean up
    try:
        options = parse_options(sys.argv[1:] if argv is None else argv, dict(os.environ))
        if options.save_dir is not None:
            saving.prepare_folder(options.save_dir)
        listeners = open_ports(options)
        log = open_server_log(options.log_dir, options.job)
        pserver = Pserver(options, listeners, log, loaded)
        if options.metrics:
            from .exposition import serve_metrics  # rarely needed

            serve_metrics(options.metrics, options.job.rank, pserver.collect, options.secret)
    except env.EnvError as e:
        return _refuse(EX_USAGE, e)
    except OSError as e:
        return _refuse(EX_UNAVAILABLE if isinstance(e, ports.PortError) else EX_IOERR, e)
    with contextlib.closing(log):
        return pserver.serve()


def _refuse(code: int, error: Exception) -> int:
    print(f"pslaunch pserver: {error}", file=sys.stderr)
    Progress(os.environ.get("PSLAUNCH_PROGRESS", "")).report_reason(str(error))
    return code
