"""Manifest of a folder: one entry for each file, folder and link, with the hash of each content.

Both ends of a dispatch use it. `decode` checks data of the other side: no path leads out of the folder, and
the folders of each path are in the same manifest.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import operator
import os
import re
import stat
import struct
import time
from _blake2 import blake2b  # hashlib would load OpenSSL: megabytes, and not always faster
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

KEPT = frozenset({"log", "output", "nodefile", "nodes", ".pslaunch"})  # a node's own, never part of a package
MAX_MANIFEST_BYTES = 512 * 1024 * 1024  # of an encoded manifest: some millions of files
MAX_FILE_BYTES = 2**62
SETTLED_NS = 50_000_000  # a file changed more recently may change again unseen
SETTLED_COARSE_NS = 2_000_000_000  # if file times are whole seconds
HASH_READ_BYTES = 1024 * 1024
LARGE_BYTES = 1024 * 1024  # larger files are hashed by several threads
HASH_THREADS = 4
MAX_NAMED = 20  # problems listed one by one
LINK_ADVICE = "to have a link to a folder that is mounted on the nodes: --link NAME=PATH"

_KEY = struct.Struct("<QQqqq").pack
_FORMAT = "pslaunch-manifest-1"
_is_hash = re.compile("[0-9a-f]{64}").fullmatch
_ENTRY = re.compile(
    "([^\0]*)\0([fdlm])([0-7]{1,3})\0([0-9]{1,19})\0(-?[0-9]{1,18}|-?[0-8][0-9]{18})\0([^\0]*)"
)


class Entry(NamedTuple):
    """One file ("f"), folder ("d"), link inside ("l") or link to a folder that nodes mount ("m")."""

    path: str  # names with "/" between them
    kind: str
    mode: int
    size: int
    mtime_ns: int
    content: str  # the hash of a file, the target of a link


class Want(NamedTuple):
    """A file to be sent, from an offset on."""

    file: int
    offset: int


class ManifestError(ValueError):
    """Data that is no manifest, or a manifest that leads out of the folder."""


@contextlib.contextmanager
def pause_gc() -> Iterator[None]:
    """Pause garbage collection: it is slow with very many entries, which have no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def encode(entries: Sequence[Entry]) -> bytes:
    """Encode entries, in order of their paths: equal folders give equal data."""
    parts = [_FORMAT]
    parts += [
        f"{path}\0{kind}{mode:o}\0{size}\0{mtime}\0{content}"
        for path, kind, mode, size, mtime, content in entries
    ]
    return "\0".join(parts).encode("utf-8", "surrogateescape")


def make_hash() -> blake2b:
    return blake2b(digest_size=32)


def compute_digest(data: bytes | memoryview) -> str:
    """Return the hash of data, as two sides compare it and as it names a content."""
    return blake2b(data, digest_size=32).hexdigest()


def hash_rest(fd: int) -> blake2b:
    value = make_hash()
    while data := os.read(fd, HASH_READ_BYTES):
        value.update(data)
    return value


@pause_gc()
def decode(data: bytes) -> list[Entry]:
    """Return the entries that `encode` encoded; raises ManifestError on any other data."""
    text = data.decode("utf-8", "surrogateescape")
    entries: list[Entry] = []
    folders = {""}
    last = ""
    for path, kind, mode, size, mtime, content in _ENTRY.findall(text, len(_FORMAT) + 1):
        folder, _, name = path.rpartition("/")
        bad = path <= last or folder not in folders or name in ("", ".", "..") or path[0] == "/"
        if bad or (not folder and name in KEPT):
            raise ManifestError(f"{path!r} can't be a path of a package")
        e = Entry(path, kind, int(mode, 8), int(size), int(mtime), content)
        if kind == "d":
            folders.add(path)
        if not (_is_hash(content) and e.size <= MAX_FILE_BYTES if kind == "f" else _is_folder_or_link(e)):
            raise ManifestError(f"{path!r}: {kind} {size} {content[:100]!r} can't be")
        last = path
        entries.append(e)
    if encode(entries) != data:  # the search may have skipped something
        raise ManifestError(f"not a manifest: it begins with {text[:40]!r}")
    return entries


def _is_folder_or_link(e: Entry) -> bool:
    if e.kind == "d":
        return not e.content and not e.size
    return bool(e.content) and not e.size and (e.kind == "m") == leads_out(e.path, e.content)


def leads_out(path: str, target: str) -> bool:
    """Check if a link at `path` with this target leads out of the folder."""
    end = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return target.startswith("/") or end == ".." or end.startswith("../")


# --- hashes, kept between jobs ---


def make_key(st: os.stat_result) -> str:
    """Return the identity of a file state, to recognize a hashed file."""
    return f"{st.st_dev} {st.st_ino} {st.st_size} {st.st_mtime_ns} {st.st_ctime_ns}"


class Hashes:
    """Cache of file hashes by device, inode, size and times; its file may be lost."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._used: dict[str, str] = {}
        self.stop = False  # set by another thread: hashing gives up

    @functools.cached_property
    def _known(self) -> dict[str, str]:
        with contextlib.suppress(OSError, ValueError), open(self._path, encoding="ascii") as f:
            parts = (line.rpartition(" ") for line in f.read().split("\n"))
            return {key: value for key, _, value in parts if len(value) == 64}
        return {}

    def get_known(self, key: str) -> str:
        """Return the hash of the file with this key, "" if unknown."""
        value = self._known.get(key, "")
        if value:
            self._used[key] = value
        return value

    def get_used(self, key: str) -> str:
        """Return the hash of the file with this key if it was used since the start, else ""."""
        return self._used.get(key, "")

    def get_hash(self, path: str, st: os.stat_result) -> str:
        """Return the hash of the file at `path`, with the earlier state `st`."""
        return self.get_known(make_key(st)) or self._read(path, st)

    def _read(self, path: str, st: os.stat_result) -> str:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            value = make_hash()
            while data := os.read(fd, HASH_READ_BYTES):
                value.update(data)
                if self.stop:
                    raise InterruptedError(errno.EINTR, "given up", path)
            after = make_key(os.fstat(fd))
        finally:
            os.close(fd)
        if after != make_key(st):
            raise OSError(errno.EBUSY, "it changes while it is read: leave it out (.pslaunchignore)", path)
        self.learn(st, value.hexdigest())
        return value.hexdigest()

    def learn(self, st: os.stat_result, value: str) -> None:
        """Keep a hash, unless the file is so new that a further change might keep its times."""
        settled_ns = SETTLED_NS if st.st_ctime_ns % 1_000_000_000 else SETTLED_COARSE_NS
        if time.time_ns() - max(st.st_mtime_ns, st.st_ctime_ns) > settled_ns:
            self.trust(st, value)

    def trust(self, st: os.stat_result, value: str) -> None:
        """Keep a hash of a file that stays unchanged until file times advance."""
        self._used[make_key(st)] = value

    def save(self) -> None:
        if self._used == self._known:
            return
        write_beside(self._path, "\n".join(f"{key} {value}" for key, value in self._used.items()).encode())


def write_beside(path: str, data: bytes) -> None:
    """Replace a cache file atomically; without space for it there is none."""
    beside = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        try:
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with open(fd, "wb") as f:
                f.write(data)
            os.replace(beside, path)
        except OSError:
            os.unlink(beside)


# --- listing a folder ---


class Walked(NamedTuple):
    """Content of a folder, with the states of files in place of hashes; `problems` can't be sent."""

    root: str
    files: list[tuple[str, os.stat_result]]
    others: list[Entry]  # folders and links
    problems: list[str]

    def take_fingerprint(self) -> bytes:
        """Return bytes that differ after any change of it."""
        names = [self.root, *self.problems, *(path for path, _ in self.files)]
        names += [f"{e.path}\0{e.kind}{e.mode:o}\0{e.content}" for e in self.others]
        keys = [
            _KEY(st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns) for _, st in self.files
        ]  # as make_key, in a third of the time
        return b"\0\0".join(("\0\0".join(names).encode("utf-8", "surrogateescape"), *keys))


@pause_gc()
def walk_folder(
    root: str,
    *,
    ignored: Callable[[str, bool], bool] | None = None,
    skip: Collection[str] = (),
    links_out: bool = False,
) -> Walked:
    """List a folder without reading any file.

    Leaves out paths for which `ignored(path, is_folder)`, and `skip`, the job's own. Links that lead out are
    problems, or with `links_out` lead to the same place on the nodes, which see the same files.
    """
    walked = Walked(root, [], [], [])
    real_root, folders = os.path.realpath(root), [("", root)]
    while folders:
        prefix, folder = folders.pop()
        with os.scandir(folder) as found:
            for item in found:
                path = prefix + item.name
                try:
                    st = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # gone since
                kind = stat.S_IFMT(st.st_mode)
                if (not prefix and item.name in KEPT) or path in skip:
                    continue
                if ignored and ignored(path, kind == stat.S_IFDIR):
                    continue
                if kind == stat.S_IFREG:
                    walked.files.append((path, st))
                elif kind == stat.S_IFDIR:
                    walked.others.append(Entry(path, "d", stat.S_IMODE(st.st_mode) & 0o777, 0, 0, ""))
                    folders.append((f"{path}/", item.path))
                elif kind == stat.S_IFLNK:
                    _visit_link(walked, real_root, path, links_out=links_out)
                else:
                    walked.problems.append(f"{path} is neither file, folder nor link")
    return walked


def _visit_link(walked: Walked, real_root: str, path: str, *, links_out: bool) -> None:
    there = os.path.join(walked.root, path)
    target, end = os.readlink(there), os.path.realpath(there)
    if end == real_root or end.startswith(real_root + os.sep):
        if leads_out(path, target):  # by the folder's name on this machine
            target = os.path.relpath(end, os.path.join(real_root, os.path.dirname(path)))
        walked.others.append(Entry(path, "l", 0o777, 0, 0, target))
    elif links_out:
        walked.others.append(Entry(path, "m", 0o777, 0, 0, end))
    else:
        walked.problems.append(f"{path} is a link that leads out, to {end}")


@pause_gc()
def add_hashes(walked: Walked, hashes: Hashes) -> list[Entry]:
    """Return the entries with the hashes of all files; reads files with unknown hashes."""
    entries = list(walked.others)
    known, add = hashes.get_known, entries.append
    large = _hash_large_files(walked, hashes)
    for path, st in walked.files:
        content = (
            known(make_key(st)) or large.get(path) or hashes.get_hash(os.path.join(walked.root, path), st)
        )
        add(Entry(path, "f", st.st_mode & 0o777, st.st_size, st.st_mtime_ns, content))
    entries.sort(key=operator.itemgetter(0))
    return entries


def _hash_large_files(walked: Walked, hashes: Hashes) -> dict[str, str]:
    """Return the unknown hashes of large files, several computed at once."""
    files = [(path, st) for path, st in walked.files if st.st_size >= LARGE_BYTES]
    files = [(path, st) for path, st in files if not hashes.get_known(make_key(st))]
    threads = min(len(files), HASH_THREADS, os.cpu_count() or 1)
    if threads < 2:
        return {}
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(lambda file: hashes.get_hash(os.path.join(walked.root, file[0]), file[1]), files)
        return {path: content for (path, _), content in zip(files, found)}
