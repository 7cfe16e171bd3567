"""The Python API: `launch` runs the command line in a process of its own, and gives its events."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from .errors import JobError, PslaunchError, SpecError
from .node import codes
from .node.head.events import Event, RecentEvents, note_state
from .node.later.record import RESTART

__all__ = ["Job", "JobError", "PslaunchError", "launch"]
OF_SHELLS: Final = ("detach", "dry_run", "json")  # options that a job of a program can't have


class Job:
    """A job that `launch` has started. It ends at the latest with this process, however that ends.

    As a context manager, also with `async with`, it is stopped when the block is left. If it has failed
    before, JobError is raised there, unless `wait` has raised it.
    """

    def __init__(self, words: Sequence[str]) -> None:
        from .backends.lines import KeptOutput

        self._said = KeptOutput()
        argv = [sys.executable, "-P", "-m", __name__, str(os.getpid())]
        with KeptOutput().file as file:  # not argv, which all users can read, and the system limits
            file.write(json.dumps(words).encode())
            file.seek(0)
            # In a session of its own: neither Ctrl+C in the terminal nor the interrupt of a notebook ends it.
            self._launcher = subprocess.Popen(
                argv, stdin=file, stdout=subprocess.PIPE, stderr=self._said.file, start_new_session=True
            )
        self._lock = threading.RLock()  # as a handler of a signal may ask too
        self._asked: list[tuple[int, Future[Any]]] = []  # with the events that each waits for
        self._kept, self._next = RecentEvents(), 0
        self._last: dict[str, Event] = {}  # of each kind
        self._restarts: dict[int, dict[str, Any]] = {}  # by epoch
        self._states: dict[str, dict[str, Any]] = {}  # of the processes
        self._last_words = ""
        self._code: int | None = None  # once all is over
        self._told = False
        atexit.register(self._note_exit)
        threading.Thread(target=self._read, daemon=True).start()

    def events(self) -> Iterator[dict[str, Any]]:
        """Return an iterator over the job's events until its end, those of `--json` (events.md).

        Of a long job the last 20,000 events or 16 MiB are kept: a `note` with `missing` stands for those that
        are gone before the caller has read them.
        """
        found, cursor = self._ask(0).result()
        while found:
            yield from found
            found, cursor = self._ask(cursor).result()

    def status(self) -> dict[str, Any]:
        """Return the state of the job and of its processes, with the fields of `pslaunch status --json`."""
        from .run.jobs import NEWS

        with self._lock:
            job, end = self._last.get("job", {}), self._last.get("end", {})
            now = "ending" if "ending" in self._last else "running" if job else "waiting"
            state = "ended" if end else now if self._code is None else "lost"
            processes = [{**p, **self._states[p["process"]]} for p in job.get("processes", ())]
            restarts = [*self._restarts.values()]
        found = {**job, "state": state, "processes": processes, "restarts": restarts}
        if job:
            found |= {"nodes": len(job["nodes"]), "host": job["nodes"][0]["name"], "started": job["time"]}
            found["elapsed_s"] = round(time.time() - job["time"], 3)
        return {key: {**found, **end}.get(key) for key in NEWS}

    def logs(self, process: str) -> list[str]:
        """Return the lines that a process, such as `trainer/0`, has printed, as far as events are kept.

        The whole log is the file `log` of the process in `status()`, on its node.
        """
        with self._lock:
            told = [kept["told"] for kept in self._kept.list_since(0)]
        return [e["text"] for e in told if e["event"] == "line" and e["process"] == process]

    def stop(self, *, kill: bool = False) -> None:
        """End the job in order, with `kill` at once, and wait for its end; an ended job stays as it is."""
        self._launcher.send_signal(signal.SIGTERM)
        if kill:
            self._launcher.send_signal(signal.SIGINT)  # the second signal
        self._ask().result()

    def wait(self) -> int:
        """Wait for the end of the job and return 0. Raises JobError if it has failed or was stopped."""
        self._ask().result()
        self._told = True
        if self._code:
            raise self._make_error(self._code)
        return codes.OK

    async def wait_async(self) -> int:
        """Do the same as `wait` in an event loop."""
        await self._ask_async()
        return self.wait()

    async def events_async(self) -> AsyncIterator[dict[str, Any]]:
        """Do the same as `events` in an event loop."""
        found, cursor = await self._ask_async(0)
        while found:
            for event in found:
                yield event
            found, cursor = await self._ask_async(cursor)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._leave(kind)
        self._ask().result()
        if not self._told:
            self.wait()  # which raises

    async def __aenter__(self) -> Job:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self._leave(kind)
        await self._ask_async()
        self.__exit__(kind)

    def _leave(self, kind: type[BaseException] | None) -> None:
        """Stop the job unless it has ended; that, or an error of the block, is all that is told."""
        ended = self._code is not None or "end" in self._last
        self._told |= kind is not None or not ended
        if not ended:
            self._launcher.send_signal(signal.SIGTERM)

    def _ask_async(self, cursor: int = sys.maxsize) -> Awaitable[Any]:
        import asyncio  # as slow as a start

        return asyncio.wrap_future(self._ask(cursor))

    def _ask(self, cursor: int = sys.maxsize) -> Future[Any]:
        """Return what has events from a cursor on and the next one, once there are any or all is over."""
        asked: Future[Any] = Future()
        with self._lock:
            self._asked.append((cursor, asked))
            self._answer()
        return asked

    def _answer(self) -> None:
        """Give what is asked for, with the lock held, after each change."""
        for cursor, asked in self._asked:
            if (self._next > cursor or self._code is not None) and asked.set_running_or_notify_cancel():
                kept = self._kept.list_with_gaps(cursor)
                # Numbers of those kept here are not the head's; notes of a launcher have none.
                told = [e.get("told") or {k: e[k] for k in e if k != "n"} for e in kept]
                asked.set_result((told, self._next))
        self._asked = [each for each in self._asked if not each[1].done()]

    def _read(self) -> None:
        """Keep the events, until the command line has ended."""
        assert self._launcher.stdout is not None
        with self._launcher.stdout as lines, self._said.file:
            for line in lines:
                if line.endswith(b"}\n"):  # else it was killed while it wrote
                    self._keep(json.loads(line))
            code = self._launcher.wait()
            self._last_words = self._said.read_end().strip()
        with self._lock:
            self._code = code if code >= 0 else codes.SIGNAL_BASE - code
            self._answer()
        atexit.unregister(self._note_exit)

    def _note_exit(self) -> None:
        text = "Python ends, and this job with it: job.wait() waits for its end"
        print(f"pslaunch.launch: note: {text}", file=sys.stderr)

    def _keep(self, event: Event) -> None:
        with self._lock:
            self._kept.keep({"n": self._next, "time": event["time"], "event": "told", "told": event})
            self._next += 1
            self._last[event["event"]] = event
            if event["event"] == "job":
                self._states = {p["process"]: {"state": "waiting"} for p in event["processes"]}
            elif event["event"] == "restart":
                self._restarts[event["epoch"]] = {name: event[name] for name in RESTART}
            note_state(self._states, event)
            self._answer()

    def _make_error(self, code: int) -> JobError:
        """Return the end of the job in the words of the command line, and in parts."""
        from .views.view import Transcript, show_ending

        job, end = self._last.get("job"), self._last.get("end", {})
        failure, transcript = end.get("failure") or {}, Transcript()
        if job:
            transcript.make_lines(job)
        if end.get("code"):
            cause, text = end["reason"], "\n".join(said.text for said in transcript.make_lines(end))
        else:  # results were not fetched, or the launcher was killed
            early = "the job was asked to end (SIGTERM) before it had begun" if code == codes.TERM else ""
            lost = self._last_words or early or f"the job's launcher ended {show_ending(code, None)}"
            cause = text = self._last["note"]["text"] if end and "note" in self._last else lost
        nodes = {node["id"]: node["name"] for node in job["nodes"]} if job else {}
        process = failure["what"] if failure.get("what") in self._states else ""
        host = nodes.get(failure.get("node"), "")
        return JobError(text, code, cause, process, host, failure.get("tail", ()))


def launch(
    program: str | os.PathLike[str] | Callable[..., object] = "train.py",
    *,
    backend: str = "local",
    args: Sequence[object] = (),
    **options: object,
) -> Job:
    """Start a job and return it, as `pslaunch BACKEND OPTIONS PROGRAM ARGS` does.

    program: a file, or a function of a module in the workspace, which each trainer imports and calls. args:
    words for the program; for a function its arguments, as far as JSON can carry them. options: those of the
    command (options.md) and the v2 trainer's flags: True for one without a value, a list for one that may be
    repeated.

    Raises PslaunchError if the command line is wrong; nothing was started. Notes go to standard error.
    """
    from .backends.gather import read_command
    from .backends.registry import find_face, find_owners, get_options
    from .options.args import split_command_line

    face = find_face(backend)
    if callable(program):
        of_call, program, args = _describe_call(program, args)
        if options.get("job_workspace"):
            del of_call["job_dispatch_package"]
        options = {**of_call, **options}
    command, name = next(iter(face.helps)), os.fspath(program)
    words = ["--json", *_make_words(options), name, *map(str, args)]
    split = split_command_line(words, get_options(backend), find_owners, face.list_refused())
    if unknown := [*split.forwarded, *([split.program or name] if split.program != name else [])]:
        raise SpecError(f"launch(): {backend} takes no {unknown[0]}; words for the program are in args")
    read_command(face, command, split, lambda text: print(f"pslaunch.launch: note: {text}", file=sys.stderr))
    return Job([backend, *filter(None, [command]), *words])


def _make_words(options: Mapping[str, object]) -> Iterator[str]:
    for name, value in options.items():
        if name in OF_SHELLS:
            raise SpecError(f"launch(): {name} is for shells only: pslaunch BACKEND --{name}")
        if isinstance(value, Mapping):
            value = [f"{key}={text}" for key, text in value.items()]
        for each in value if isinstance(value, (list, tuple)) else [] if value is None else [value]:
            first, *rest = each if isinstance(each, (list, tuple)) else [each]  # mca has two words
            yield from (f"--{name}={first}", *map(str, rest))


def _describe_call(
    function: Callable[..., object], args: Sequence[object]
) -> tuple[dict[str, object], str, list[str]]:
    """Return options, program and words that call a function. Raises SpecError."""
    module, name = (str(getattr(function, key, None)) for key in ("__module__", "__qualname__"))
    loaded, inside = sys.modules.get(module), Path(*module.split(".")).with_suffix(".py")
    path = Path(getattr(loaded, "__file__", None) or "/").absolute()
    ours = path.match(str(inside)) and not {"site-packages", "dist-packages"} & {*path.parts}
    if module == "__main__" or not ours or getattr(loaded, name, None) is not function:
        raise SpecError(
            f"launch(): nodes can't import {name} of {module}: write it at the top level of a .py file of "
            "the workspace (in a notebook: %%writefile), and import it from there"
        )
    found = {"job_dispatch_package": path.parents[len(inside.parts) - 1], "call": name}
    return found, str(inside), [json.dumps(arg) for arg in args]


# --- The process of the command line. ---


def main() -> None:
    """Run the command line for a caller, and end its job once that process has ended."""
    caller, ended = int(sys.argv.pop(1)), os.pidfd_open(os.getppid())
    if os.getppid() != caller:  # it has ended already
        sys.exit(codes.TERM)
    for number in (signal.SIGINT, signal.SIGTERM):  # which it may ignore
        signal.signal(number, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(ended,), daemon=True).start()
    sys.argv += json.load(sys.stdin)
    with Path(os.devnull).open("rb") as null:
        os.dup2(null.fileno(), sys.stdin.fileno())
    from .__main__ import main as run

    run()


def _end_with(pidfd: int) -> None:
    select.select([pidfd], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
