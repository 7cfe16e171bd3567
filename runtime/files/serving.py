"""Values for a model server: a base and its deltas by mmap, read-only. docs/serving.md has the use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import _core
from .exports import INDEX_SUFFIX, NEWEST, count_places
from .joined import Floats, Keys64
from .manifest import read_manifest
from .objects import Item, PartFile, SetError
from .sets import Set

__all__ = ["Table"]

Bytes = npt.NDArray[np.uint8]
TRIES = 5  # to open a chain whose folders a newer one replaces meanwhile


def hash_keys(keys: Keys64) -> Keys64:
    """Return ps_key_hash() of csrc/tables/ps_init.h: splitmix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    x = keys + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class _MappedRows:
    """Rows of a table in one part, and the places of their numbers (ps_index_keys() of csrc)."""

    item: Item
    keys: Keys64
    rows: Floats  # [count, dim]
    places: npt.NDArray[np.uint32]

    def find(self, keys: Keys64, hashes: Keys64) -> npt.NDArray[np.intp]:
        """Return the number of each key's row; -1 where there is none."""
        found, left = np.full(len(keys), -1, np.intp), np.arange(len(keys))
        mask = len(self.places) - 1
        at = (hashes & np.uint64(mask)).astype(np.intp)
        while left.size:
            numbers = self.places[at].astype(np.intp) - 1
            there = numbers >= 0
            left, at, numbers = left[there], at[there], numbers[there]
            same = self.keys[numbers] == keys[left]
            found[left[same]] = numbers[same]
            left, at = left[~same], (at[~same] + 1) & mask
        return found


class _MappedSet:
    """One set of a chain, verified and mapped."""

    def __init__(self, folder: Path) -> None:
        self.set = found = Set(folder, deltas=True)
        files = [part.file for part in found.open_all()]
        files += [found.open_file(name) for name in found.find_files(INDEX_SUFFIX)]
        self._maps: dict[str, Bytes] = {f.path.name: np.memmap(f, np.uint8, "r") for f in files}
        self.tables = {  # by name, in the order of shards
            name: [self._make_rows(part, item) for part, item in found.find_rows(name)]
            for name, shape in found.shapes.items()
            if shape.table
        }
        self._joined: dict[str, Floats] = {}

    def _make_rows(self, part: PartFile, item: Item) -> _MappedRows:
        data, n, width = self._maps[part.path.name], item.count, item.row_floats
        keys = np.frombuffer(data, np.uint64, n, item.keys_at)
        rows = np.frombuffer(data, np.float32, n * width, item.at).reshape(n, width)[:, : item.dim]
        index, size = self._maps.get(part.path.stem + INDEX_SUFFIX), count_places(n)
        if index is None:  # no export: in the memory of this process
            places = np.zeros(size, np.uint32)
            _core.index_keys(keys, places)
        else:
            before = [one.count for one in part.items.values() if one.table and one.at < item.at]
            places = np.frombuffer(index, np.uint32, size, 4 * sum(map(count_places, before)))
        return _MappedRows(item, keys, rows, places)

    def get(self, name: str) -> Floats:
        """Return a dense parameter, without a copy if it is in one part."""
        if name not in self._joined:
            places = [
                (self._maps[part.path.name], size, item.at + 4 * begin)
                for part, item, begin, size in self.set.find_values(name)
            ]
            pieces = [np.frombuffer(data, np.float32, size, at) for data, size, at in places]
            self._joined[name] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return self._joined[name]


class Table:
    """The values of a training's exports as of the newest one, or of any set.

    Opening verifies all files. Rows that nobody pushed have their initial values.
    """

    def __init__(self, folder: str | Path) -> None:
        """Open an export folder, or that of a set. Raises SetError, which names the file, and OSError."""
        self.folder = Path(folder).absolute()
        self._chain: dict[str, _MappedSet] = {}  # the base, then its deltas
        self.refresh()

    @property
    def set(self) -> Set:
        """The newest set."""
        return [*self._chain.values()][-1].set

    @property
    def step(self) -> int:
        """The step of the training after which the values are."""
        return self.set.manifest.step

    def refresh(self) -> bool:
        """Take the newest export, of which only new files are read; return False if there is no newer one.

        Raises SetError, OSError: then the values are those before.
        """
        for _ in range(TRIES):
            newest = self._read_newest()
            try:
                return self._take(newest)
            except (SetError, OSError):
                if newest == self._read_newest():
                    raise
        return self._take(self._read_newest())

    def _take(self, newest: str) -> bool:
        manifest = read_manifest(self.folder / newest) if newest else Set(self.folder).manifest
        if self._chain and manifest.digest == self.set.digest:
            return False
        names = manifest.extra.get("chain", [newest])
        old = {name: level for name, level in self._chain.items() if name != newest}
        chain = {name: old.get(name) or _MappedSet(self.folder / name) for name in names}
        for level in [*chain.values()][:-1]:
            level.set.close()  # the maps stay
        self._chain = chain
        return True

    def _read_newest(self) -> str:
        """Return the name of the newest export; "" for the folder of a set."""
        try:
            return (self.folder / NEWEST).read_text().strip()
        except FileNotFoundError:
            return ""

    def lookup(self, keys: npt.ArrayLike, name: str = "") -> Floats:
        """Return the rows of these keys, [.., dim], in an array of its own. `name`: of one of several tables.

        Raises ValueError for a key that the table does not have, or an unknown name.
        """
        asked = np.asarray(keys)
        if asked.dtype.kind not in "iu" and asked.size:
            raise ValueError(f"keys of type {asked.dtype}, expected whole numbers")
        own = asked.reshape(-1).astype(np.uint64)
        tables = self._list_parts(name)
        item, shards = tables[0][0].item, len(tables[0])
        if own.size and (asked.min() < 0 or own.max() >= item.total):
            raise ValueError(
                f"{item.name} has the keys 0 to {item.total - 1}, not {asked.min()} to {asked.max()}"
            )
        out, hashes = np.empty((len(own), item.dim), np.float32), hash_keys(own)
        dealt = ((hashes >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32)
        for shard in range(shards):
            left = np.flatnonzero(dealt == shard)
            for parts in tables:
                part = parts[shard]
                numbers = part.find(own[left], hashes[left])
                there = numbers >= 0
                out[left[there]] = part.rows[numbers[there]]
                left = left[~there]
                if not (part.item.changed and left.size):
                    break
            first = np.empty((len(left), item.dim), np.float32)
            _core.init_rows(first, own[left], item.init[0], _core.hash_name(item.name), *item.init[1:])
            out[left] = first
        return out.reshape(*asked.shape, item.dim)

    def _list_parts(self, name: str) -> list[list[_MappedRows]]:
        """Return the parts of a table in each set of the chain, the newest first."""
        levels = [level.tables for level in reversed(self._chain.values())]
        known = [own for own, parts in levels[0].items() if parts[0].item.total]  # others are trainers' own
        if not name and len(known) == 1:
            name = known[0]
        if name not in known:
            raise ValueError(
                f"{self.folder} has no table {name!r}; name one of: {', '.join(known) or 'none'}"
            )
        return [level[name] for level in levels if name in level]

    def get(self, name: str) -> Floats:
        """Return the values of a dense parameter, [size], to be read. Raises KeyError for an unknown name."""
        return [*self._chain.values()][-1].get(name)
