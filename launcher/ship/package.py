"""The folder that is sent to nodes; listed on the launcher's machine while nodes are contacted."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SpecError
from ..node import codes
from ..node.codes import Refusal
from ..node.dispatch.data_shards import DataShards
from ..node.dispatch.manifest import (
    LINK_ADVICE,
    MAX_NAMED,
    Entry,
    Hashes,
    Walked,
    add_hashes,
    compute_digest,
    make_key,
    walk_folder,
    write_beside,
)
from ..node.dispatch.sender import Source
from ..node.job import Package
from ..node.listing import make_own_folder, show_few
from ..node.loop import Loop, ignore
from ..views.view import show_bytes

if TYPE_CHECKING:
    from ..node.dispatch.dispatch import Fail, Parts, Tell, Then

IGNORE = ".pslaunchignore"
# Folders that tools make, which programs on nodes seldom need, and the size from which they are named.
OF_TOOLS = frozenset(
    (".git", ".hg", ".svn", ".venv", "venv", ".tox", "node_modules", "__pycache__", ".mypy_cache")
)
HEAVY_BYTES = 10 * 1024 * 1024


class PackageFolder:
    """A package in a folder of this machine; listing begins at once, `get` gives the result."""

    filled: frozenset[int] = frozenset()

    def __init__(self, loop: Loop, package: Package, warn: Callable[[str], object] = ignore) -> None:
        self._listed: Source | Exception | None = None  # once it is over
        self._waiting: list[tuple[Then, Fail]] = []
        self._warn = warn
        self._warnings: list[str] = []
        loop.do_aside(
            lambda: list_package(package, os.environ, self._warnings.append), self._finish, self._finish
        )

    def get(self, then: Then, fail: Fail, mine: Parts | None = None, tell: Tell | None = None) -> None:
        """Call `then` with the whole package, or `fail` with the error; there is no progress to report."""
        if self._listed is None:
            self._waiting.append((then, fail))
        elif isinstance(self._listed, Exception):
            fail(self._listed)
        else:
            then(self._listed)

    def _finish(self, listed: Source | Exception) -> None:
        self._listed = listed
        for text in self._warnings:
            self._warn(text)
        for waiting in self._waiting:
            self.get(*waiting)


def list_package(
    package: Package, environ: Mapping[str, str], warn: Callable[[str], object] = ignore
) -> Source:
    """List and hash the folder. Raises Refusal if something in it can't be sent, OSError.

    warn: gets a remark on large folders that tools have made.
    """
    walked = {"": _walk(package)}
    for name, folder in package.extras.items():
        walked[name] = walk_folder(folder)
    _remark_heavy(walked[""], warn)
    links = repr(sorted(package.links.items())).encode()
    fingerprint = compute_digest(b"\0\0\0".join((links, *(w.take_fingerprint() for w in walked.values()))))
    listing = _find_cache(package.folder, environ, "listing")
    if not package.data_shards and (manifest := _read_listing(listing, fingerprint)):
        return Source(package.folder, manifest, extras=package.extras)
    entries: list[Entry] = []
    certain = True
    for name, there in walked.items():
        hashes = Hashes(_find_cache(there.root, environ, "hashes"))
        found = add_hashes(there, hashes)
        if name:
            _check_problems(there.root, there.problems, "; cp -rL makes a copy without links")
            entries.append(Entry(name, "d", 0o755, 0, 0, ""))
            entries += [e._replace(path=f"{name}/{e.path}") for e in found]
        else:
            entries += _select_own(package, found, there.problems)
        certain &= all(hashes.get_used(make_key(st)) for _, st in there.files)
        hashes.save()
    source = Source(package.folder, sorted(entries), extras=package.extras)
    if certain:
        write_beside(listing, f"{fingerprint} {source.digest}\n".encode() + source.manifest)
    return source


def _read_listing(path: str, fingerprint: str) -> bytes:
    """Return the last manifest of a package with this fingerprint from its cache, else nothing."""
    with contextlib.suppress(OSError):
        head, _, manifest = Path(path).read_bytes().partition(b"\n")
        if head == f"{fingerprint} {compute_digest(manifest)}".encode():
            return manifest
    return b""


def _remark_heavy(walked: Walked, warn: Callable[[str], object]) -> None:
    """Name large folders that tools have made, with the bytes in all of that name and the remedy."""
    sizes: dict[str, int] = {}
    if any(e.kind == "d" and e.path.rpartition("/")[2] in OF_TOOLS for e in walked.others):
        for path, st in walked.files:
            name = next((part for part in path.split("/")[:-1] if part in OF_TOOLS), "")
            sizes[name] = sizes.get(name, 0) + st.st_size
    heavy = [(name, size) for name, size in sorted(sizes.items()) if name and size >= HEAVY_BYTES]
    if heavy:
        listed = ", ".join(f"{name}/ ({show_bytes(size)})" for name, size in heavy)
        warn(
            f"{walked.root} is sent with {listed}; if the programs don't need it, "
            f"a line in {IGNORE} leaves it out"
        )


def _select_own(package: Package, found: list[Entry], problems: list[str]) -> list[Entry]:
    """Return the entries of the folder itself. Raises Refusal."""
    _check_data_shards(package, found)
    entries = _add_links(found, package.links, package.link_label)
    problems = [p for p in problems if p.partition(" is ")[0] not in package.links]
    advice = f" ({LINK_ADVICE})" if any("leads out" in p for p in problems) else ""
    _check_problems(package.folder, problems, f"{advice}; {IGNORE} leaves things out")
    return entries


def _check_problems(folder: str, problems: list[str], advice: str) -> None:
    if problems:
        raise Refusal(codes.USAGE, f"{folder} can't be sent: {show_few(problems, MAX_NAMED, '; ')}{advice}")


def _check_data_shards(package: Package, entries: list[Entry]) -> None:
    """Refuse a pattern that fits no file: every trainer would get all files."""
    for pattern in package.data_shards:
        number = DataShards([pattern]).find_number
        if not any(e.kind != "d" and number(e.path) is not None for e in entries):
            raise Refusal(
                codes.USAGE,
                f"{package.data_shard_label}={pattern} fits no file in {package.folder}: "
                "a pattern is a whole path below it",
            )


def list_sizes(package: Package) -> list[Entry]:
    """Return all entries to send, with empty hashes. Raises SpecError if something can't be sent."""
    try:
        walked = _walk(package)
        files = [Entry(p, "f", st.st_mode & 0o777, st.st_size, 0, "") for p, st in walked.files]
        return _select_own(package, [*walked.others, *files], walked.problems)
    except Refusal as e:
        raise SpecError(str(e)) from None


def _walk(package: Package) -> Walked:
    walked = walk_folder(
        package.folder,
        ignored=_load_ignore_rules(Path(package.folder) / IGNORE),
        skip=package.skip,
        links_out=package.links_out,
    )
    ours = set()  # our own output (`pslaunch … > job.log`) would grow while it is sent
    for fd in (1, 2):
        with contextlib.suppress(OSError):  # it is closed
            st = os.fstat(fd)
            ours.add((st.st_dev, st.st_ino))
    return walked._replace(files=[(p, st) for p, st in walked.files if (st.st_dev, st.st_ino) not in ours])


def _add_links(entries: list[Entry], links: Mapping[str, str], label: str) -> list[Entry]:
    """Return the entries with links to folders mounted on the nodes in place of their own entries."""
    by_path = {e.path: e for e in entries if not any(f"{e.path}/".startswith(f"{name}/") for name in links)}
    for name, target in links.items():
        by_path[name] = Entry(name, "m", 0o777, 0, 0, target)
        for above in list(map(str, Path(name).parents))[:-1]:
            there = by_path.setdefault(above, Entry(above, "d", 0o755, 0, 0, ""))
            if there.kind != "d":
                raise Refusal(codes.USAGE, f"{label} {name}={target}: {above} is not a folder of the package")
    return sorted(by_path.values())


def _load_ignore_rules(rules: Path) -> Callable[[str, bool], bool] | None:
    if not rules.is_file():
        return None
    from pathspec import GitIgnoreSpec  # slow to import

    try:
        spec = GitIgnoreSpec.from_lines(rules.read_text("utf-8", "surrogateescape").splitlines())
    except ValueError as e:
        raise Refusal(codes.USAGE, f"{rules}: {e}") from e
    return lambda path, is_folder: spec.match_file(f"{path}/" if is_folder else path)


def _find_cache(folder: str, environ: Mapping[str, str], name: str) -> str:
    """Return the path of a cache: in the folder, or among the user's caches if it is not writable."""
    own = Path(folder) / ".pslaunch"
    if own.is_symlink():
        raise Refusal(codes.USAGE, f"{own} is a link, so caches would be written elsewhere: remove it")
    if os.access(own if own.is_dir() else folder, os.W_OK | os.X_OK):
        make_own_folder(str(own))
        return str(own / name)
    kept = find_caches(environ)
    kept.mkdir(parents=True, exist_ok=True)
    return str(kept / f"{compute_digest(os.fsencode(folder))[:32]}.{name}")


def find_caches(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "pslaunch"
