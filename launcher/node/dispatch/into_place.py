"""Atomic update of a workspace: new files are staged, then moved into place under a journal.

Below `.pslaunch/dispatch/` of the workspace: `staged/` has verified contents, `manifest` lists the files of
the last dispatch, `journal` is a manifest on its way into place. While there is a journal no program may
start; `finish` carries it out, and may be interrupted any number of times. All paths are walked folder by
folder without following links: no manifest can touch anything outside the workspace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from .manifest import Entry, Hashes, ManifestError, decode

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
STAGED, JOURNAL, MANIFEST, HASHES = "staged", "journal", "manifest", "hashes"
_LINK = "link"  # in staged/: a link before it is moved
_KINDS = {"f": stat.S_IFREG, "d": stat.S_IFDIR, "l": stat.S_IFLNK, "m": stat.S_IFLNK}


class Tree:
    """Folders below `root` by descriptor, opened level by level; the last path stays open."""

    def __init__(self, root: str) -> None:
        self._names: list[str] = []
        self._fds = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]

    def close(self) -> None:
        self._cut(0)
        os.close(self._fds.pop())

    def open_folder(self, path: str) -> int:
        """Return a folder's descriptor, valid until the next call. Raises OSError, also for a link."""
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
            if mode & 0o700 != 0o700:  # its own mode is set at the end
                os.fchmod(fd, stat.S_IMODE(mode) | 0o700)
        return self._fds[-1]

    def open_parent(self, path: str) -> tuple[int, str]:
        """Return the descriptor of a path's folder, and its last name."""
        folder, _, name = path.rpartition("/")
        return self.open_folder(folder), name

    def _cut(self, depth: int) -> None:
        del self._names[depth:]
        while len(self._fds) > depth + 1:
            os.close(self._fds.pop())


def find_staged(workspace: str) -> str:
    """Return the folder of contents that are not in their places."""
    return os.path.join(workspace, ".pslaunch", "dispatch", STAGED)


class Store:
    """The folder `.pslaunch/dispatch/` of a workspace, open."""

    def __init__(self, workspace: str) -> None:
        """Makes missing folders, the workspace too."""
        os.makedirs(workspace, exist_ok=True)
        self.workspace = workspace
        self.path = os.path.dirname(find_staged(workspace))
        with contextlib.closing(Tree(workspace)) as tree:
            outer = _enter(tree.open_folder(""), ".pslaunch", 0o755)
        self.fd = _enter(outer, "dispatch", 0o700)
        self.staged_fd = _enter(self.fd, STAGED, 0o700)
        os.close(outer)

    def close(self) -> None:
        for fd in (self.fd, self.staged_fd):
            os.close(fd)

    def read(self, name: str) -> bytes:
        """Return the content of a file, empty if it is missing."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError), open(os.open(name, flags, dir_fd=self.fd), "rb") as f:
            return f.read()
        return b""

    def read_entries(self) -> list[Entry]:
        """Return the entries of the last dispatch, none if it is unknown or was damaged by a program."""
        with contextlib.suppress(ManifestError):
            return decode(self.read(MANIFEST))
        return []

    def write(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Replace a file atomically; `sync`: after writing it to the disk."""
        fd = os.open("new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600, dir_fd=self.fd)
        with open(fd, "wb") as f:
            f.write(data)
            if sync:
                f.flush()
                os.fsync(fd)
        os.rename("new", name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def list_staged(self) -> set[str]:
        return set(os.listdir(self.staged_fd))

    def open_staged(self, name: str) -> int:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.staged_fd)

    def create_staged(self, name: str, flags: int = 0) -> int:
        """Open a staged file for writing too, which may be there. Raises OSError."""
        flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self.staged_fd)

    def clear(self, kept: Collection[str] = ()) -> None:
        """Remove all other staged files."""
        for name in self.list_staged():
            if name not in kept:
                os.unlink(name, dir_fd=self.staged_fd)


def _enter(fd: int, name: str, mode: int) -> int:
    """Open a folder in another one; make it if missing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=fd)
    return os.open(name, _FOLDER, dir_fd=fd)


def finish(workspace: str) -> None:
    """Carry out a journal, if there is one. Raises OSError, or ManifestError if it is damaged."""
    with contextlib.closing(Store(workspace)) as store:
        if data := store.read(JOURNAL):
            _carry_out(store, decode(data))


def read_entries(workspace: str) -> list[Entry]:
    """Return the entries of the last dispatch into a workspace. Raises OSError."""
    with contextlib.closing(Store(workspace)) as store:
        return store.read_entries()


def assign_stage_names(entries: Sequence[Entry]) -> Iterable[tuple[Entry, str]]:
    """Return each file's name in `staged/`: its hash, numbered from the second equal content on."""
    seen: dict[str, int] = {}
    for e in entries:
        if e.kind == "f":
            n = seen.get(e.content, 0)
            seen[e.content] = n + 1
            yield e, f"{e.content}-{n}" if n else e.content


# --- comparing ---


class Survey:
    """Differences between a workspace and a manifest."""

    def __init__(self) -> None:
        self.lacking: list[Entry] = []  # with missing content
        self.off = False  # a folder, link, mode or time differs
        self.intact: dict[str, str] = {}  # paths of contents that some file lacks, by hash
        self.unfit: list[str] = []  # folders that can't be filled, with reasons
        self.conflicts: list[str] = []  # programs' files in place of entries of another kind


def survey(workspace: str, entries: Sequence[Entry], old: Sequence[Entry], hashes: Hashes) -> Survey:
    """Compare a workspace with a manifest; change nothing. `old`: entries of the earlier dispatch."""
    found = Survey()
    missing: set[str] = set()  # missing folders, or something else in their place
    have: dict[str, str] = {}
    others: list[Entry] = []  # with something of another kind, and no link, in their place
    for e in entries:
        path = f"{workspace}/{e.path}"
        st = _lstat(path) if not missing or e.path.rpartition("/")[0] not in missing else None
        if st and stat.S_IFMT(st.st_mode) not in (_KINDS[e.kind], stat.S_IFLNK):
            others.append(e)
        if e.kind == "f":
            is_sized = st is not None and stat.S_ISREG(st.st_mode) and st.st_size == e.size
            if st and is_sized and hashes.get_hash(path, st) == e.content:
                have[e.content] = e.path
                found.off |= st.st_mode & 0o777 != e.mode or st.st_mtime_ns != e.mtime_ns
            else:
                found.lacking.append(e)
        elif e.kind == "d":
            if not st or not stat.S_ISDIR(st.st_mode):
                missing.add(e.path)
            found.off |= e.path in missing or (st is not None and st.st_mode & 0o777 != e.mode)
        else:
            found.off |= not st or not stat.S_ISLNK(st.st_mode) or os.readlink(path) != e.content
    if found.lacking or found.off:
        kinds = {e.path: e.kind for e in entries}
        wanted = {e.content for e in found.lacking}
        for e in old:  # what was only moved or copied
            if e.kind == "f" and e.content in wanted and e.content not in have and e.path not in kinds:
                path = f"{workspace}/{e.path}"
                with contextlib.suppress(OSError):
                    st = os.lstat(path)
                    same_size = stat.S_ISREG(st.st_mode) and st.st_size == e.size
                    if same_size and hashes.get_hash(path, st) == e.content:
                        have[e.content] = e.path
        found.intact = {content: have[content] for content in wanted if content in have}
        put = {e.path: e for e in old} if others else {}
        found.conflicts = [path for e in others for path in _find_strangers(workspace, e.path, put)]
        folders = {e.path.rpartition("/")[0] for e in found.lacking}
        found.unfit = _find_unfit(workspace, sorted(folders))
    return found


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _find_unfit(workspace: str, folders: Iterable[str]) -> list[str]:
    """Return folders into which `.pslaunch/` files can't be moved, with reasons."""
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


def _find_strangers(workspace: str, path: str, put: Mapping[str, Entry]) -> Iterator[str]:
    """Yield what no dispatch put at or below a path, or what was changed since."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # gone meanwhile
        st = os.lstat(f"{workspace}/{path}")
        if path not in put or not _is_as_put(st, put[path]):
            yield path
        elif stat.S_ISDIR(st.st_mode):
            for name in os.listdir(f"{workspace}/{path}"):
                yield from _find_strangers(workspace, f"{path}/{name}", put)


def _is_as_put(st: os.stat_result, e: Entry) -> bool:
    if stat.S_IFMT(st.st_mode) != _KINDS[e.kind]:
        return False
    return e.kind != "f" or (st.st_size == e.size and st.st_mtime_ns == e.mtime_ns)


# --- changing it ---


def put_in_place(store: Store, manifest: bytes, entries: Sequence[Entry], kept: Collection[str] = ()) -> None:
    """Change the workspace atomically to `entries`; all lacking files are staged."""
    os.fsync(store.staged_fd)
    store.write(JOURNAL, manifest, sync=True)  # from here on `finish` completes the change
    _carry_out(store, entries, kept)


def _carry_out(store: Store, entries: Sequence[Entry], kept: Collection[str] = ()) -> None:
    """Carry out the journal, which becomes the manifest."""
    _move(store, store.read_entries(), entries)
    os.rename(JOURNAL, MANIFEST, src_dir_fd=store.fd, dst_dir_fd=store.fd)
    store.clear(kept)


def _move(store: Store, old: Sequence[Entry], entries: Sequence[Entry]) -> None:
    """Carry out the journal; any step may be done already."""
    with contextlib.closing(Tree(store.workspace)) as tree:
        _remove(tree, old, {e.path: e.kind for e in entries})
    with contextlib.closing(Tree(store.workspace)) as tree:  # anew: folders may have been replaced
        staged = store.list_staged()
        names = {e.path: name for e, name in assign_stage_names(entries)} if staged else {}
        for e in entries:
            try:
                fd, name = tree.open_parent(e.path)
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
                fd = tree.open_folder(e.path)
                if stat.S_IMODE(os.fstat(fd).st_mode) != e.mode:
                    os.fchmod(fd, e.mode)


def _remove(tree: Tree, old: Sequence[Entry], kinds: Mapping[str, str]) -> None:
    """Remove entries of the earlier dispatch that are gone now or of another kind."""
    for e in reversed(old):
        kind = kinds.get(e.path)
        if kind is not None and (kind == "d") == (e.kind == "d"):
            continue
        try:
            fd, name = tree.open_parent(e.path)
            st = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError:
            continue  # gone already
        if e.kind != "d" and _is_as_put(st, e):
            os.unlink(name, dir_fd=fd)
        elif e.kind == "d" and stat.S_ISDIR(st.st_mode):
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise  # holds programs' files: it stays


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
    """Set mode and time of a file with the right content."""
    try:
        st = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return  # removed after an interruption: the next dispatch sees it
    if not stat.S_ISREG(st.st_mode) or (st.st_mode & 0o777 == e.mode and st.st_mtime_ns == e.mtime_ns):
        return
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
    try:
        os.fchmod(file, e.mode)
        os.utime(file, ns=(e.mtime_ns, e.mtime_ns))
    finally:
        os.close(file)
