"""Sets of parts: opened with their digests verified, written by one process, and dealt over shards.

Needs no numpy.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from operator import methodcaller
from pathlib import Path
from typing import Any

from . import blocks
from .blocks import Dealt
from .manifest import MANIFEST, Manifest, hash_file, read_manifest, write_manifest
from .objects import (
    METHODS,
    NAMES,
    Content,
    Item,
    ObjectShape,
    PartFile,
    SetError,
    Whole,
    describe_object,
    read_shape,
)
from .saving import PART_SUFFIX, Entry, File, Header, prepare_folder, write_whole

STORED = struct.Struct("=i4xQQQQQ")  # ps_stored in csrc/shard/ps_first.h
_SHARD = re.compile(r"shard-(\d{5})-(\d{3})(?:-\w+)?\.bin")
_OLD = re.compile(r"(?:shard-\d{5}-\d{3}|trainer-\d{5}|program)-\w+\.(?:bin|json)")  # of a save on request
# What find of _core.run_shard returns: _core.pyi has it.
Stretch = tuple[PartFile, Item, int, int]
Fetch = Callable[[Path], object]  # gets a file that is not there, if it can
Found = tuple[int, int, int, int, int, bool, tuple[int, int, float, float], int, int, bytes]


@dataclass(frozen=True, slots=True)
class Layout:
    """Ports of a training."""

    pservers: int = 1
    ports_num: int = 1
    ports_num_for_sparse: int = 0  # 0: tables are on the dense ones

    @property
    def dense(self) -> int:
        """Number of dense shards."""
        return self.pservers * self.ports_num

    @property
    def sparse(self) -> int:
        """Number of shards with tables."""
        return self.pservers * (self.ports_num_for_sparse or self.ports_num)

    def find_numbers(self, pserver: int, port: int) -> tuple[int | None, int | None]:
        """Return the number of a port among dense shards, and among those with tables; None if it is none."""
        at, own = port - self.ports_num, self.ports_num_for_sparse
        dense = pserver * self.ports_num + port if at < 0 else None
        return dense, (pserver * own + at if at >= 0 else None) if own else dense


def read_layout(header: Header) -> Layout:
    """Return the ports of a part's training."""
    return Layout(header.pservers, header.ports_num, header.ports_num_for_sparse)


class Set:
    """A set, whose parts are opened and verified when they are needed."""

    def __init__(self, folder: Path, fetch: Fetch = lambda _: None, *, deltas: bool = False) -> None:
        """Read the manifest, or make that of a pservers' save at their end. Raises SetError, OSError.

        `deltas`: also a set with only the rows that changed since an export.
        """
        self.folder, self._fetch, self._deltas = folder, fetch, deltas
        self._parts: dict[str, PartFile] = {}
        if not (folder / MANIFEST).exists():
            fetch(folder / MANIFEST)
        if (folder / MANIFEST).exists() or not folder.is_dir():
            self.manifest = read_manifest(folder)
        else:
            self.manifest, self._parts = derive_manifest(folder)
        self.digest = self.manifest.digest
        try:
            self.layout = Layout(**self.manifest.layout)
            self.described = {one["name"]: one for one in self.manifest.objects}
            self.shapes = {shape.name: shape for shape in map(read_shape, self.manifest.objects)}
        except (AttributeError, LookupError, TypeError) as e:
            raise SetError(f"{folder / MANIFEST} is no manifest of a set: {e}") from None
        self._entries = {entry.name: entry for entry in self.manifest.files}
        names = {name: _SHARD.fullmatch(name) for name in self._entries}
        self._shards = {(int(at[1]), int(at[2])): name for name, at in names.items() if at}  # pserver, port
        self._first, at = dict[str, int](), 0
        for shape in self.shapes.values():
            self._first[shape.name] = at
            at += 0 if shape.table or shape.fixed else blocks.count_blocks(shape.total, whole=shape.whole)

    def close(self) -> None:
        for part in self._parts.values():
            part.file.close()
        self._parts.clear()

    __del__ = close

    def open(self, name: str) -> PartFile:
        """Return a part, verified. Raises SetError."""
        if name not in self._parts:
            self._parts[name] = part = PartFile(self.open_file(name))
            for item in [*part.items.values()]:
                shape = self.shapes.get(item.name)
                if shape is None:  # of the trainers' own use: Messages
                    del part.items[item.name]
                elif shape.kind != item.kind:
                    raise SetError(f"{part.path}: {item.name} differs from {MANIFEST}: saves are mixed")
                elif item.changed and not self._deltas:
                    raise SetError(
                        f"{part.path} has only rows that changed since the export before: "
                        "pslaunch.runtime.serving reads them, with those of the base"
                    )
        return self._parts[name]

    def read_file(self, name: str) -> bytes:
        """Return a file that is no part, verified; its name there has the save in it. Raises SetError."""
        stem, suffix = re.escape(Path(name).stem), re.escape(Path(name).suffix)
        own = next((one for one in self._entries if re.fullmatch(rf"{stem}(-\w+)?{suffix}", one)), name)
        f = self.open_file(own)
        return os.pread(f.fileno(), f.size, 0)

    def open_file(self, name: str) -> Content:
        """Return a file of the set, verified. Raises SetError."""
        path, entry = self.folder / name, self._entries.get(name)
        if not path.exists():
            self._fetch(path)
        try:
            f = Content(path)
        except OSError as e:
            why = "copy it there, or save to a folder that all nodes share"
            raise SetError(f"{path}: {e.strerror}, but it is a file of the set: {why}") from None
        if hash_file(f) != entry:
            raise SetError(f"{path} is not the file of {MANIFEST}: it is damaged, or of another save")
        return f

    @property
    def open_parts(self) -> Collection[PartFile]:
        return self._parts.values()

    def open_all(self) -> list[PartFile]:
        """Return all parts. Raises SetError."""
        return [self.open(name) for name in self.find_files(PART_SUFFIX)]

    def find_files(self, suffix: str) -> list[str]:
        """Return the names of its files with this suffix."""
        return [name for name in self._entries if name.endswith(suffix)]

    def open_shard(self, number: int, *, sparse: bool = False) -> PartFile:
        """Return the part of a dense shard, or of one with tables. Raises SetError."""
        own, dense = self.layout.ports_num_for_sparse if sparse else 0, self.layout.ports_num
        pserver, port = divmod(number, own or dense)
        name = self._shards.get((pserver, port + (dense if own else 0)))
        if name is None:
            raise SetError(f"{self.folder / MANIFEST} lacks the part of shard {number}: take another copy")
        return self.open(name)

    def open_overlapping(self, number: int, n: int) -> list[PartFile]:
        """Return the parts with keys of shard `number` of n: hashes are dealt in ranges. Raises SetError."""
        m = self.layout.sparse
        numbers = range(number * m // n, -(-(number + 1) * m // n))
        return [self.open_shard(i, sparse=True) for i in numbers]

    def find_all(self, name: str) -> list[tuple[PartFile, Item]]:
        """Return the object in all parts that have it."""
        return [(part, part.items[name]) for part in self.open_all() if name in part.items]

    def find_rows(self, name: str, number: int = 0, n: int = 1) -> list[tuple[PartFile, Item]]:
        """Return the parts of a table that have keys of shard `number` of n."""
        if self.shapes[name].fixed:
            return self.find_all(name)
        return [(part, part.items[name]) for part in self.open_overlapping(number, n)]

    def find_values(self, name: str, number: int = 0, target: Dealt = (0, 1, False)) -> list[Stretch]:
        """Return the places of a dense object's values for shard `number` of those of `target`, in order.

        Of each: part, begin among the part's values, and length.
        """
        shape = self.shapes[name]
        if shape.fixed:
            return [(part, item, 0, shape.total) for part, item in self.find_all(name)]
        first, n, whole = source = self._first[name], self.layout.dense, shape.whole
        found = []
        for piece in blocks.place_again(shape.total, source, number, target):
            part = self.open_shard(piece.shard)
            item = part.items.get(name)
            share = blocks.count_share(shape.total, first, piece.shard, n, whole=whole)
            if item is None or item.count != share:
                raise SetError(f"{part.path} lacks values of {name}: its share of {shape.total} is {share}")
            found.append((part, item, piece.start, piece.length))
        return found


def derive_manifest(folder: Path) -> tuple[Manifest, dict[str, PartFile]]:
    """Return the manifest and the parts of a pservers' save at their end. Raises SetError, OSError."""
    parts, entries = dict[str, PartFile](), list[Entry]()
    for path in sorted(folder.glob("shard-?????-???.bin")):
        entries.append(hash_file(f := Content(path)))
        parts[path.name] = PartFile(f)
    if not parts:
        raise SetError(f"{folder}: no set of saved parameters: it has no {MANIFEST}")
    headers = {name: part.read_header() for name, part in parts.items()}
    first = min(headers)
    for name, header in headers.items():
        if header.name != name:
            raise SetError(f"{folder / name}: the content is that of {header.name}")
        if replace(header, pserver=0, port=0) != replace(headers[first], pserver=0, port=0):
            raise SetError(f"{folder}: {name} and {first} are of different trainings, or ended differently")
    kinds = [[item.kind for item in part.items.values()] for part in parts.values()]
    if any(kind != kinds[0] for kind in kinds):
        raise SetError(f"{folder}: the parts have different parameters")
    header = headers[first]
    ports = header.ports_num + header.ports_num_for_sparse
    names = (replace(header, pserver=p, port=i).name for p in range(header.pservers) for i in range(ports))
    if missing := next((name for name in names if name not in parts), None):
        raise SetError(f"{folder}: {missing}: missing")
    step = max((item.steps for item in parts[first].items.values()), default=0)
    about = describe_part(parts[first]) | {"step": step, "files": entries}
    return Manifest(job_id=header.job_id, epoch=header.epoch, run=header.run, **about), parts


def describe_part(part: PartFile) -> dict[str, Any]:
    """Return what a shard's part tells the manifest of its set. Raises SetError."""
    items = part.items.values()
    return {
        "passes": max((item.passes for item in items), default=0),
        "layout": asdict(read_layout(part.read_header())),
        "objects": [describe_object(item.create) for item in items],
    }


class Share:
    """Values of a set for one port of a pserver, of whatever layout."""

    def __init__(self, found: Set, layout: Layout, pserver: int, port: int) -> None:
        """Open and verify the parts. Raises SetError, OSError."""
        self.set = found
        dense, sparse = layout.find_numbers(pserver, port)
        self._dense, self._sparse = (dense, layout.dense), (sparse, layout.sparse)
        self._blocks = 0  # of the objects so far
        # What the port needs if the objects of the program are those of the set.
        if dense is not None:
            step = math.gcd(layout.dense, had := self.set.layout.dense)
            for one in range(dense % step, had, step):
                self.set.open_shard(one)
        if sparse is not None:
            self.set.open_overlapping(sparse, layout.sparse)

    def find(self, name: str, table: bool, dim: int, total: int, method: int) -> Found | None:
        """Return the places of an object, as _core.run_shard wants them; None if the set lacks it.

        It is asked for each object in the order of creation. Raises SetError if the set's has another shape.
        State of another optimizer is left out.
        """
        whole, first = METHODS[NAMES[method]][2], self._blocks
        self._blocks += 0 if table else blocks.count_blocks(total, whole=whole)
        shape = self.set.shapes.get(name)
        if shape is None or shape.fixed:
            return None
        check_shape(self.set.folder, shape, table=table, dim=dim, total=total)
        items: list[Item] = []
        stored = b""
        (number, n) = self._sparse if table else self._dense
        if number is not None and table:
            for part, item in self.set.find_rows(name, number, n):
                items.append(item)
                numbers = item.keys_at, item.at, 0, item.count, item.waiting
                stored += STORED.pack(part.file.fileno(), *numbers)
        elif number is not None:
            for part, item, at, size in self.set.find_values(name, number, (first, n, whole)):
                items.append(item)
                stored += STORED.pack(part.file.fileno(), 0, item.at + 4 * at, 4 * item.count, size, 0)
        same = shape.method == NAMES[method]
        steps, samples, passes = count_before(items if same else ()).values()
        counted = any(item.counted for item in items)
        slots = shape.slots if same else 0
        init = items[0].init if items else (0, 0, 0.0, 0.0)
        own = shape.row_floats, counted, init, number or 0, n
        return (steps, samples, passes, slots, *own, stored)


def count_before(items: Collection[Item]) -> dict[str, int]:
    """Return the steps, samples and passes of an object that is in these parts."""
    counts = "steps", "samples", "passes"
    return {what: max((getattr(item, what) for item in items), default=0) for what in counts}


def check_shape(folder: Path, shape: ObjectShape, *, table: bool, dim: int, total: int) -> None:
    """Raise SetError unless a program's object is that of a set."""
    if (shape.table, shape.dim, shape.total) != (table, dim, total):
        has, needs = (
            f"{rows} rows of {width}" if width else f"{rows} values"
            for rows, width in ((shape.total, shape.dim), (total, dim))
        )
        raise SetError(f"{folder}: {shape.name} has {has}, the program {needs}: it is of another model")


def write_set(folder: Path, objects: Iterable[Whole], about: Manifest, files: Mapping[str, bytes]) -> None:
    """Write a set whose values are all in this process, and other files of it. Raises OSError."""
    prepare_folder(folder, "saving to ")
    with making_set(folder, about, files, Layout()) as new:
        header = Header(job_id=about.job_id, epoch=about.epoch, run=about.run, save=new.save)
        new.write_part(header.name, header.encode(), objects)


@dataclass(slots=True)
class NewSet:
    """What there is of a set so far; the names of its files have `save` in them."""

    folder: Path
    save: str
    files: list[Entry] = field(default_factory=list)
    objects: list[Mapping[str, Any]] = field(default_factory=list)

    def write_part(self, name: str, start: bytes, objects: Iterable[Whole], **more: object) -> None:
        """Write one part durably; `more` is said of its objects in the manifest. Raises SaveError."""
        with closing(File(self.folder, name, start)) as file:
            for one in objects:
                self.objects.append(one.describe() | more)
                one.write(file)
            self.files.append(file.finish())


@contextmanager
def making_set(folder: Path, about: Manifest, files: Mapping[str, bytes], layout: Layout) -> Iterator[NewSet]:
    """Let the parts of a set be written; then write its other files, and its manifest from `about`.

    A set that is there stays whole until then. Files of one that fails are removed. Raises OSError.
    """
    new = NewSet(folder, secrets.token_hex(4))
    try:
        yield new
        for name, content in files.items():
            path = folder / Path(name).with_stem(f"{Path(name).stem}-{new.save}").name
            write_whole(path, methodcaller("write", content))
            new.files.append(hash_file(Content(path)))
        write_manifest(folder, replace(about, layout=asdict(layout), objects=new.objects, files=new.files))
    except BaseException:
        for path in folder.glob(f"*-{new.save}.*"):
            path.unlink(missing_ok=True)
        raise
    names = {entry.name for entry in new.files}
    for path in folder.iterdir():
        if _OLD.fullmatch(path.name) and path.name not in names:
            with suppress(OSError):  # it takes only room
                path.unlink()
