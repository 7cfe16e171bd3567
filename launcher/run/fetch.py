"""Results from nodes: output/ of node 0 and the logs of every node, as complete tar streams.

A node is trusted with its own job, not with this machine: nothing is written outside the folder.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shutil
import socket
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..backends.base import Backend
from ..errors import FileError, PslaunchError, SpecError
from ..node import codes
from ..node.dispatch.manifest import compute_digest
from ..node.job import Node
from ..node.later import record
from ..node.later.relay import NOTES
from ..node.logs import EVENTS_LOG
from .answers import Question, ask_all

_MODE_BITS = 0o777
MAX_NOTES = 3
NOTES_BYTES = MAX_NOTES * 16 * 1024  # each with up to three of the longest names, and their folder
HEADER_BYTES = 64 * 1024  # of one entry, with names of the longest possible path
READ_AHEAD_BYTES = 32 * 1024  # read by tarfile and the buffer below it before they need it
MAX_ENTRIES = 1_000_000
MARK_BYTES = 70  # of a job's id in the name of a socket, which has 107


class Fetched(NamedTuple):
    """Results of a fetch: paths written here, messages about the rest, and errors of nodes."""

    brought: list[str]
    left_out: list[str]
    failed: dict[str, PslaunchError]  # by folder and node

    @property
    def code(self) -> int:
        """Return the exit code of the first failure, 0 without one."""
        return next((error.exit_code for error in self.failed.values()), codes.OK)


def fetch_results(
    backend: Backend, job_id: str, nodes: Sequence[Node], output: Path | None, logs: Path | None
) -> Fetched:
    """Fetch a job's results from its nodes.

    output: folder for the new and changed files in `output/` of node 0. logs: folder for one folder per
    node, `ID-NAME` or `ID`, with its `log/`. A node fails also if a folder there now belongs to another job.
    """
    found = Fetched([], [], {})
    wanted = [(nodes[0], output, "results", nodes[0].output_dir)] if output else []
    if logs:
        wanted += [(node, logs / _name_folder(job_id, node), "pack", node.log_dir) for node in nodes]
    questions = [
        Question(node.id, functools.partial(backend.ask, node, [mode, path, node.state_dir, job_id]))
        for node, _, mode, path in wanted
    ]
    with ask_all(questions) as answers:
        for (node, folder, _, path), answer in zip(wanted, answers, strict=True):
            try:
                with contextlib.closing(answer):
                    unpack(answer, folder, found)
            except PslaunchError as e:  # others may have theirs
                found.failed[f"{path} on {node.name}"] = e
    # Of a job that its launcher on this machine led: beside the logs of node 0, where other jobs have them.
    events = Path(record.get_folder()) / f"{job_id}{record.EVENTS_SUFFIX}"
    if logs and events.exists():
        copy = logs / _name_folder(job_id, nodes[0]) / EVENTS_LOG
        try:
            copy.unlink(missing_ok=True)  # perhaps a link of a node's
            shutil.copyfile(events, copy)
            found.brought.append(str(copy))
        except OSError as e:
            found.left_out.append(f"{copy}: {e.strerror}")
    return found


def _name_folder(job_id: str, node: Node) -> str:
    # A name of this run alone says nothing; the next run's logs then take the place of these.
    name = "" if node.name.startswith(f"{job_id}-") else f"-{node.name.replace('/', '_')}"
    return f"{node.id}{name}"


def describe_results(found: Fetched, output: Path | None, logs: Path | None) -> list[str]:
    """Return a text on the files that a fetch without failures has written."""
    said = []
    if output:
        none = "there are no results: output/ has nothing new"
        said.append(f"results are in {output}" if _has_file(output, found) else none)
    if logs:
        said.append(f"logs are in {logs}" if _has_file(logs, found) else "there are no logs")
    return said


def _has_file(folder: Path, found: Fetched) -> bool:
    return any(path.startswith(f"{folder}/") and not Path(path).is_dir() for path in found.brought)


def describe_log(
    found: Fetched, failure: Mapping[str, Any], job_id: str, nodes: Sequence[Node], logs: Path
) -> list[str]:
    """Return a text with the local path of the failed part's log; [] if it has none, or it was not fetched.

    failure: of the event `end`.
    """
    folders = [logs / _name_folder(job_id, node) for node in nodes if node.id == failure["node"]]
    paths = [str(folder / Path(failure["log"]).name) for folder in folders if failure["log"]]
    return [f"the log of {failure['what']} is {path}" for path in paths if path in found.brought]


def unpack(pieces: Iterator[bytes], folder: Path, found: Fetched) -> None:
    """Write a tar stream of files, folders and links below `folder`, and add it to `found`.

    The stream is read to its end, hash included, even after the archive's own end. Raises FileError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        notes: list[str] = []
        stream = _PieceFile(pieces)
        stream.allow(HEADER_BYTES)
        with tarfile.open(fileobj=io.BufferedReader(stream), mode="r|") as archive:
            for number, member in enumerate(archive):
                if number == MAX_ENTRIES:
                    raise ValueError(f"it has more than {MAX_ENTRIES:,} entries")
                vars(archive)["members"].clear()  # which would grow with each entry
                # Of any other entry no content follows, whatever size it claims. And the next header.
                has_content = member.type == NOTES or (member.isreg() and not member.issparse())
                stream.allow((member.size if has_content else 0) + HEADER_BYTES)
                if member.type == NOTES:
                    source = archive.extractfile(member)
                    assert source is not None
                    notes = notes or source.read(NOTES_BYTES).decode("utf-8", "replace").split("\n")
                    continue
                path = str(folder / member.name)
                if why := _write(archive, member, folder):
                    found.left_out.append(f"{path} {why}")
                else:
                    found.brought.append(path)
        found.left_out.extend(notes[:MAX_NOTES])
        for _ in pieces:
            pass
    except (tarfile.TarError, ValueError, OverflowError) as e:  # also for impossible names and times
        raise FileError(f"the data for {folder} is not a valid tar stream: {e}") from e
    except OSError as e:
        e.filename = e.filename or str(folder)
        raise FileError.from_os(e, "write what was fetched:") from e


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> str:
    """Write one entry; returns the reason if it is left out, else an empty text."""
    path = folder / member.name
    if ".." in Path(member.name).parts or not _is_in(folder, path.parent):
        raise FileError(f"{member.name!r} would be written outside {folder}: nothing more is taken")
    path.parent.mkdir(parents=True, exist_ok=True)  # a new file in an old folder comes without it
    if member.isdir():
        path.mkdir(exist_ok=True)
    elif member.isreg() and not member.issparse():  # never sent by a node, and could claim any size
        source = archive.extractfile(member)
        assert source is not None
        # A suffix could make the longest name too long.
        beside = path.with_name(f".{os.urandom(8).hex()}.part")
        try:
            with beside.open("xb") as target:
                while data := source.read(1024 * 1024):
                    target.write(data)
            beside.chmod(member.mode & _MODE_BITS)
            os.utime(beside, (member.mtime, member.mtime))
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    elif not member.issym():
        return "is not a file, folder or link"
    elif _has_inner_parent(member.linkname) or not _is_in(folder, path.parent / member.linkname):
        return f"is a link that leads out, to {member.linkname}"
    else:
        path.unlink(missing_ok=True)
        path.symlink_to(member.linkname)
    return ""


def _has_inner_parent(target: str) -> bool:
    """Return True if `..` follows a name: if that name becomes a link, the path leads elsewhere."""
    parts = Path(target).parts
    return ".." in parts[next((i for i, part in enumerate(parts) if part != ".."), len(parts)) :]


def _is_in(folder: Path, path: Path) -> bool:
    """Return True if a path leads into a folder; accepts a circle of links, which Path.resolve rejects."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


class _PieceFile(io.RawIOBase):
    """File over pieces, readable up to a limit, since tarfile would keep a header of any size in memory."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest, self._allowed = pieces, b"", 0
        self._at_end = False

    def allow(self, size: int) -> None:
        self._allowed = size + READ_AHEAD_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type] # any buffer
        if not self._rest:
            if self._at_end:  # tarfile would go on as long as an entry claims to be, for years
                raise ValueError("it ends inside an entry")
            self._rest = next(self._pieces, b"")
            self._at_end = not self._rest
        n = min(len(view), len(self._rest))
        self._allowed -= n
        if self._allowed < 0:
            raise ValueError("the header of an entry is too long")
        view[:n], self._rest = self._rest[:n], self._rest[n:]
        return n


# --- Folders of this machine for results: while one job has a folder, no other writes there. ---


@contextlib.contextmanager
def hold_folders(folders: Mapping[str, Path], job_id: str) -> Iterator[None]:
    """Make and hold the folders for a job's results, given by their names in messages.

    A name in the kernel marks each, as it marks ports (node/ports.py), and ends with this process. Raises
    SpecError for a folder that another job has or that can't be made.
    """
    with contextlib.ExitStack() as held:
        for shown, folder in folders.items():
            name = f"pslaunch-results-{compute_digest(os.fsencode(os.path.realpath(folder)))[:16]}"
            mark, of_job = (held.enter_context(socket.socket(socket.AF_UNIX)) for _ in "12")
            own = os.fsencode(job_id)[-MARK_BYTES:]  # its end tells it from others
            try:
                mark.bind(f"\0{name}")
                of_job.bind(os.fsencode(f"\0{name}-") + own)
            except OSError:
                if (holder := _find_holder(name)) != own.decode(errors="replace"):
                    text = f"{shown}: the results of job {holder}, which is not over, go there"
                    raise SpecError(f"{text}; give another folder, or wait for its end") from None
            try:  # before the training, not after it
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as e:
                raise SpecError(f"{shown}: the folder can't be made: {e.strerror}") from None
        yield


def _find_holder(name: str) -> str:
    """Return the id of the job that has a mark, or its end."""
    found = re.search(rf"@{name}-(.+)", Path("/proc/net/unix").read_text("utf-8", "replace"))
    return found[1] if found else "(unknown)"
