"""A workspace goes from one package to the next as a whole: new files wait beside, then move under a journal.

Below `.pslaunch/dispatch/` of the workspace: `staged/` has contents that were verified, `manifest` is what
the last dispatch put there, `journal` is a manifest on its way into place. While there is a journal no
program may start; `finish` carries it out, as often as it is cut. All paths are walked folder by folder
without following a link, so that nothing outside the workspace is touched, whatever a manifest says.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence

from .manifest import Entry, Hashes, ManifestError, decode, key_of

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
STAGED, JOURNAL, MANIFEST, HASHES = "staged", "journal", "manifest", "hashes"
_LINK = "link"  # in staged/: a link before it is moved
_KINDS = {"f": stat.S_IFREG, "d": stat.S_IFDIR, "l": stat.S_IFLNK, "m": stat.S_IFLNK}


class Tree:
    """Folders below `root` by descriptors, opened one by one; the last ones stay open."""

    def __init__(self, root: str) -> None:
        self._names: list[str] = []
        self._fds = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        self._cut(0)
        os.close(self._fds.pop())

    def folder(self, path: str) -> int:
        """Descriptor of a folder, until the next call. Raises OSError: not there, no folder, or a link."""
        names = path.split("/") if path else []
        same = 0
        while same < min(len(names), len(self._names)) and names[same] == self._names[same]:
            same += 1
        self._cut(same)
        for name in names[same:]:
            fd = os.open(name, _FOLDER, dir_fd=self._fds[-1])
            self._names.append(name)
            self._fds.append(fd)
            mode = os.fstat(fd).st_mode
            if mode & 0o700 != 0o700:  # ours to change; it gets its own mode at the end
                os.fchmod(fd, stat.S_IMODE(mode) | 0o700)
        return self._fds[-1]

    def at(self, path: str) -> tuple[int, str]:
        """Where a path is: its folder's descriptor and its last name."""
        folder, _, name = path.rpartition("/")
        return self.folder(folder), name

    def forget(self) -> None:
        """Folders may have been replaced: open them again."""
        self._cut(0)

    def _cut(self, depth: int) -> None:
        del self._names[depth:]
        while len(self._fds) > depth + 1:
            os.close(self._fds.pop())


class Store:
    """The folder `.pslaunch/dispatch/` of a workspace, open."""

    def __init__(self, workspace: str) -> None:
        """Makes what is missing, the workspace too."""
        os.makedirs(workspace, exist_ok=True)
        self.workspace = workspace
        self.path = os.path.join(workspace, ".pslaunch", "dispatch")
        with Tree(workspace) as tree:
            outer = _enter(tree.folder(""), ".pslaunch", 0o755)
        self.fd = _enter(outer, "dispatch", 0o700)
        self.staged_fd = _enter(self.fd, STAGED, 0o700)
        os.close(outer)

    def close(self) -> None:
        for fd in (self.fd, self.staged_fd):
            os.close(fd)

    def read(self, name: str) -> bytes:
        """A file of ours; nothing where it is not there."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        except FileNotFoundError:
            return b""
        with open(fd, "rb") as f:
            return f.read()

    def entries(self, name: str) -> list[Entry]:
        """A manifest of ours; none where it is not there or no manifest (a program's doing)."""
        data = self.read(name)
        with contextlib.suppress(ManifestError):
            return decode(data) if data else []
        return []

    def write(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Make a file of ours, as a whole; `sync`: it is on the disk before it is there."""
        fd = os.open("new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=self.fd)
        with open(fd, "wb") as f:
            f.write(data)
            if sync:
                f.flush()
                os.fsync(f.fileno())
        os.rename("new", name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def open_journal(self, manifest: bytes) -> None:
        """From here on the workspace becomes that of `manifest`, whatever happens to us."""
        os.fsync(self.staged_fd)
        self.write(JOURNAL, manifest, sync=True)

    def close_journal(self) -> None:
        """All is in place: the journal is what the workspace holds."""
        os.rename(JOURNAL, MANIFEST, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def staged(self) -> set[str]:
        """Names of all that is staged."""
        return set(os.listdir(self.staged_fd))

    def open_staged(self, name: str) -> int:
        """A descriptor of something staged, to be read. Raises OSError."""
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.staged_fd)

    def staged_size(self, name: str) -> int:
        """Bytes of a staged file; -1 where there is none."""
        try:
            st = os.stat(name, dir_fd=self.staged_fd, follow_symlinks=False)
        except FileNotFoundError:
            return -1
        return st.st_size if stat.S_ISREG(st.st_mode) else -1

    def clear(self, kept: Collection[str] = ()) -> None:
        """Drop all that is staged, but for contents that others get from here."""
        for name in self.staged():
            if name not in kept:
                os.unlink(name, dir_fd=self.staged_fd)


def _enter(fd: int, name: str, mode: int) -> int:
    """Descriptor of a folder in another one, made where it is missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=fd)
    return os.open(name, _FOLDER, dir_fd=fd)


def finish(workspace: str) -> None:
    """Carry out a journal, if there is one. Raises OSError, or ManifestError where it is none of ours."""
    store = Store(workspace)
    try:
        data = store.read(JOURNAL)
        if data:
            _move(store, store.entries(MANIFEST), decode(data))
            store.close_journal()
            store.clear()
    finally:
        store.close()


def read_entries(workspace: str) -> list[Entry]:
    """Return the entries that the last dispatch put into a workspace. Raises OSError."""
    store = Store(workspace)
    try:
        return store.entries(MANIFEST)
    finally:
        store.close()


def stage_names(entries: Sequence[Entry]) -> Iterable[tuple[Entry, str]]:
    """The name in `staged/` of each file: that of its content, with a number from the second equal one on."""
    seen: dict[str, int] = {}
    for e in entries:
        if e.kind == "f":
            n = seen.get(e.content, 0)
            seen[e.content] = n + 1
            yield e, f"{e.content}-{n}" if n else e.content


# --- what is there ---


class Survey:
    """What a workspace lacks of a manifest: files to be sent, and whether more has to be put right."""

    def __init__(self) -> None:
        self.lacking: list[int] = []  # places in the manifest of files whose content is not there
        self.off = False  # a folder, link, mode or time is not as it should be
        self.intact: dict[str, str] = {}  # where a content is that some file lacks, by its hash
        self.fingerprints: list[
            str
        ] = []  # path and fingerprint (unchanged.py) of each entry, where all is there
        self.certain = True  # whether other fingerprints would tell of any change
        self.unfit: list[str] = []  # folders that can't be filled, and why
        self.conflicts: list[str] = []  # what programs put where the package has something of another kind


def survey(workspace: str, entries: Sequence[Entry], old: Sequence[Entry], hashes: Hashes) -> Survey:
    """Compare a workspace with a manifest; changes nothing. `old` is what an earlier dispatch put there."""
    found = Survey()
    missing: set[str] = set()  # folders that are not there, or are something else
    have: dict[str, str] = {}
    others: list[Entry] = []  # where something of another kind is
    known = hashes.known
    for i, e in enumerate(entries):
        path = f"{workspace}/{e.path}"
        st = _lstat(path) if not missing or e.path.rpartition("/")[0] not in missing else None
        if st and stat.S_IFMT(st.st_mode) != _KINDS[e.kind]:
            others.append(e)
        if e.kind == "f":
            if not st or st.st_size != e.size or not stat.S_ISREG(st.st_mode):
                found.lacking.append(i)
                continue
            key = key_of(st)
            content = known(key)
            if not content:
                content = hashes.of(path, st)
                found.certain &= bool(hashes.used(key))
            if content != e.content:
                found.lacking.append(i)
            else:
                have[content] = e.path
                found.fingerprints += e.path, key
                found.off |= st.st_mode & 0o777 != e.mode or st.st_mtime_ns != e.mtime_ns
        elif e.kind == "d":
            if not st or not stat.S_ISDIR(st.st_mode):
                missing.add(e.path)
            found.off |= e.path in missing or (st is not None and st.st_mode & 0o777 != e.mode)
            found.fingerprints += e.path, f"d{e.mode:o}"
        else:
            found.off |= not st or not stat.S_ISLNK(st.st_mode) or os.readlink(path) != e.content
            found.fingerprints += e.path, f"l{e.content}"
    if found.lacking or found.off:
        _search_copies(workspace, entries, old, hashes, found, have)
        found.conflicts = _conflicts(workspace, others, old)
        found.unfit = _unfit(workspace, sorted({entries[i].path.rpartition("/")[0] for i in found.lacking}))
    return found


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _search_copies(
    workspace: str,
    entries: Sequence[Entry],
    old: Sequence[Entry],
    hashes: Hashes,
    found: Survey,
    have: dict[str, str],
) -> None:
    """Contents that were only moved or copied."""
    kinds = {e.path: e.kind for e in entries}
    wanted = {entries[i].content for i in found.lacking}
    for e in old:
        if e.kind == "f" and e.content in wanted and e.content not in have and e.path not in kinds:
            path = f"{workspace}/{e.path}"
            with contextlib.suppress(OSError):
                st = os.lstat(path)
                if stat.S_ISREG(st.st_mode) and st.st_size == e.size and hashes.of(path, st) == e.content:
                    have[e.content] = e.path
    found.intact = {content: have[content] for content in wanted if content in have}


def _conflicts(workspace: str, others: Sequence[Entry], old: Sequence[Entry]) -> list[str]:
    """What programs put where the package has something of another kind."""
    put = {e.path: e for e in old} if others else {}
    conflicts: list[str] = []
    for e in others:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            mode = os.lstat(f"{workspace}/{e.path}").st_mode
            if e.kind == "d" and stat.S_ISREG(mode) and e.path not in put:
                conflicts.append(e.path)
            elif e.kind != "d" and stat.S_ISDIR(mode):
                conflicts += _strangers(workspace, e.path, put)
            elif e.kind in "lm" and stat.S_ISREG(mode):
                st = os.lstat(f"{workspace}/{e.path}")
                conflicts += [] if e.path in put and _as_put(st, put[e.path]) else [e.path]
    return conflicts


def _unfit(workspace: str, folders: Iterable[str]) -> list[str]:
    """Folders into which nothing can be moved from `.pslaunch/`, and why."""
    disk = os.stat(workspace).st_dev
    unfit = []
    for folder in folders:
        path = folder
        while path and not os.path.lexists(f"{workspace}/{path}"):
            path = path.rpartition("/")[0]
        there = f"{workspace}/{path}" if path else workspace
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            st = os.lstat(there)
            if stat.S_ISDIR(st.st_mode) and st.st_dev != disk:
                unfit.append(f"{path} is a disk of its own")
            elif stat.S_ISDIR(st.st_mode) and st.st_uid != os.geteuid() and not os.access(there, os.W_OK):
                unfit.append(f"{path or 'the folder itself'} belongs to another user")
    return unfit


def _strangers(workspace: str, path: str, put: Mapping[str, Entry]) -> list[str]:
    """What is in a folder that no dispatch put there, or that was changed since."""
    here = f"{workspace}/{path}"
    strange = [] if path in put else [path]
    for name in os.listdir(here):
        below = f"{path}/{name}"
        mode = os.lstat(f"{workspace}/{below}").st_mode
        if stat.S_ISDIR(mode):
            strange += _strangers(workspace, below, put)
        elif below not in put or not _as_put(os.lstat(f"{workspace}/{below}"), put[below]):
            strange.append(below)
    return strange


def _as_put(st: os.stat_result, e: Entry) -> bool:
    if e.kind == "f":
        return stat.S_ISREG(st.st_mode) and st.st_size == e.size and st.st_mtime_ns == e.mtime_ns
    return e.kind != "d" and stat.S_ISLNK(st.st_mode)


# --- changing it ---


def put_in_place(store: Store, manifest: bytes, entries: Sequence[Entry], kept: Collection[str] = ()) -> None:
    """Make the workspace that of `entries`, whose lacking files are all staged, as a whole."""
    old = store.entries(MANIFEST)
    store.open_journal(manifest)
    _move(store, old, entries)
    store.close_journal()
    store.clear(kept)


def _move(store: Store, old: Sequence[Entry], entries: Sequence[Entry]) -> None:
    """The journal's work: every step may have been done already."""
    with Tree(store.workspace) as tree:
        _remove(tree, old, {e.path: e.kind for e in entries})
        tree.forget()
        staged = store.staged()
        names = {e.path: name for e, name in stage_names(entries)} if staged else {}
        for e in entries:
            try:
                fd, name = tree.at(e.path)
                if e.kind == "d":
                    _make_folder(fd, name)
                elif e.kind != "f":
                    _make_link(store, fd, name, e.content)
                elif names.get(e.path) in staged:
                    os.rename(names[e.path], name, src_dir_fd=store.staged_fd, dst_dir_fd=fd)
                else:
                    _set(fd, name, e)
            except OSError as error:
                raise OSError(error.errno, error.strerror, f"{store.workspace}/{e.path}") from error
        for e in reversed(entries):
            if e.kind == "d":
                fd = tree.folder(e.path)
                if stat.S_IMODE(os.fstat(fd).st_mode) != e.mode:
                    os.fchmod(fd, e.mode)


def _remove(tree: Tree, old: Sequence[Entry], kinds: Mapping[str, str]) -> None:
    """What an earlier dispatch put there and this one has not, or has as something else."""
    for e in reversed(old):
        kind = kinds.get(e.path)
        if kind is not None and (kind == "d") == (e.kind == "d"):
            continue
        try:
            fd, name = tree.at(e.path)
            st = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            continue  # gone already
        if e.kind != "d" and _as_put(st, e):
            os.unlink(name, dir_fd=fd)
        elif e.kind == "d" and stat.S_ISDIR(st.st_mode):
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise  # programs' files are in there: it stays


def _make_folder(fd: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=fd)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=fd)
            os.mkdir(name, 0o700, dir_fd=fd)


def _make_link(store: Store, fd: int, name: str, target: str) -> None:
    with contextlib.suppress(OSError):
        if os.readlink(name, dir_fd=fd) == target:
            return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_LINK, dir_fd=store.staged_fd)
    os.symlink(target, _LINK, dir_fd=store.staged_fd)
    os.rename(_LINK, name, src_dir_fd=store.staged_fd, dst_dir_fd=fd)


def _set(fd: int, name: str, e: Entry) -> None:
    """Mode and time of a file whose content is right."""
    try:
        st = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return  # removed by somebody else after a cut: the next dispatch sees it
    if not stat.S_ISREG(st.st_mode) or (st.st_mode & 0o777 == e.mode and st.st_mtime_ns == e.mtime_ns):
        return
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    try:
        dress(file, e)
    finally:
        os.close(file)


def dress(fd: int, e: Entry) -> None:
    """Give an open file its mode and time."""
    os.fchmod(fd, e.mode)
    os.utime(fd, ns=(e.mtime_ns, e.mtime_ns))
