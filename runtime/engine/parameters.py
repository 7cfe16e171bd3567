"""Parameters by their v2 names: values by name, and their tar file.

Values are created on first use, so that a large table on pservers takes no memory in a trainer. Files are
written and read in pieces, so that they take little memory beside the values.
"""

from __future__ import annotations

import hashlib
import io
import struct
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np

from ..files.manifest import Manifest
from ..files.objects import Whole
from ..files.saving import hash_content, write_whole
from ..files.serving import Table
from ..files.sets import Set, write_set
from ..process.settings import get_settings
from . import param_config
from .arrays import CHUNK_BYTES, F32, U64, split_rows
from .keeping import (
    NO_RULE,
    LocalTable,
    State,
    check_parameters,
    find_init,
    make_about,
    make_create,
    make_first_rows,
    make_whole,
    read_array,
)
from .kernel_numbers import Optim
from .param_config import ANY_ID, ParamConfig

_HEADER = struct.Struct("<IIQ")  # v2: format 0, bytes per value, number of values
_CONFIG_SUFFIX = ".protobuf"
_DIGEST = "pslaunch.sha256"  # the last member: the digest of all before it


ReadRows = Callable[[Mapping[str, U64]], Mapping[str, F32]]  # keys by name -> their current rows by name


class _HashedFile:
    """A file that is written, with the size and the digest of all so far."""

    def __init__(self, f: IO[bytes]) -> None:
        self._write, self.digest, self.size = f.write, hashlib.sha256(), 0

    def write(self, data: bytes | memoryview) -> None:
        self.digest.update(data)
        self.size += len(data)
        self._write(data)


class Keeper:
    """Has the optimizer's state: an updater."""

    stateful = ""  # the optimizer of a parameter with state

    def save(self, folder: Path, files: Mapping[str, bytes]) -> None: ...
    def note_loaded(self) -> None: ...


class Parameters:
    """Mapping from names to float32 matrices. Returned values are copies, and assigned ones are copied in."""

    def __init__(self, configs: Mapping[str, ParamConfig] | None = None) -> None:
        self._configs = dict(configs or {})
        self._values: dict[str, F32] = {}
        self._tables: dict[str, LocalTable] = {}  # of those with sparse_update, from the first look-up on
        self.changed: set[str] = set()  # parameters that differ from the configured initial values
        self._said = False  # that a .tar leaves the state out
        self.written = False  # True once they were written to a file
        self._live: ReadRows | None = None  # with pservers from the first step on, or of a followed Table
        self._live_names: frozenset[str] = frozenset()  # of the tables that only pservers have
        self._followed: Table | None = None  # has the values
        self.loaded: Set | None = None  # by load(): values and state that nobody has taken yet are there
        self.keeper: Keeper | None = None  # from the first training on

    def extend(self, configs: Mapping[str, ParamConfig]) -> None:
        """Add the parameters that are not here yet."""
        for name, config in configs.items():
            self._configs.setdefault(name, config)

    def keys(self) -> list[str]:
        """Return the names in the order of the layers."""
        return list(self._configs)

    names = keys

    def has_key(self, name: str) -> bool:
        """Return True if there is a parameter of this name."""
        return name in self._configs

    def __contains__(self, name: object) -> bool:
        return name in self._configs

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def get_shape(self, name: str) -> tuple[int, int]:
        """Return rows and columns; raises KeyError listing the known names."""
        return self.get_config(name).shape

    def get_config(self, name: str) -> ParamConfig:
        """Return the configuration of a parameter; raises KeyError listing the known names."""
        found = self._configs.get(name)
        if found is None:
            raise KeyError(f"no parameter {name!r}; there are {', '.join(self._configs) or 'none'}")
        return found

    def check(self, where: str, params: Mapping[str, ParamConfig]) -> None:
        """Raise ValueError, beginning with `where`, unless all parameters of a network are here."""
        for name, config in params.items():
            if name not in self:
                raise ValueError(f"{where}: the network's parameter {name} is missing")
            if self.get_shape(name) != config.shape:
                raise ValueError(
                    f"{where}: parameter {name} has the shape {self.get_shape(name)}, "
                    f"the network needs {config.shape}"
                )

    def _get_whole_shape(self, name: str) -> tuple[int, int]:
        """Return the shape of all values; raises ValueError for a table of any ids, which has none."""
        shape = self.get_shape(name)
        if shape[0] == ANY_ID:
            raise ValueError(
                f"parameter {name} has a row for any id, too many for an array or a .tar; use save(DIR)"
            )
        return shape

    def get(self, name: str) -> F32:
        """Return a copy of a parameter's values, [rows, cols]."""
        values = self.get_current(name)
        return values.copy() if values is self._values.get(name) else values

    def get_current(self, name: str) -> F32:
        """Return the current values, [rows, cols], from pservers too; read-only."""
        if name not in self._live_names and name not in self._tables:
            return self.get_array(name)
        out = np.empty(self._get_whole_shape(name), dtype=np.float32)
        for at, keys in split_rows(*out.shape):
            out[at] = self.get_rows({name: keys})[name]
        return out

    def get_rows(self, keys: Mapping[str, U64]) -> dict[str, F32]:
        """Return the current rows [k, cols] of each parameter, those from pservers in one call."""
        live = {name: own for name, own in keys.items() if name in self._live_names}
        found = self._live(live) if self._live is not None and live else {}
        return {
            name: found[name] if name in live else self._read_rows(name, own) for name, own in keys.items()
        }

    def _read_rows(self, name: str, keys: U64) -> F32:
        if name in self._values or not self.get_config(name).sparse or self._followed is not None:
            return np.take(self.get_array(name), keys.astype(np.intp), axis=0)
        if name not in self._tables:
            self._tables[name] = self._make_table(name)
        return self._tables[name].read(keys)

    def _make_table(self, name: str, rule: Optim = NO_RULE) -> LocalTable:
        """Return a table of the values here, with the state in the loaded set, to learn by this rule."""
        config, seed, stored = self.get_config(name), get_settings().seed, self._find_stored(name)
        if stored:
            config, seed = find_init(stored, config)
        table = LocalTable(config, rule, seed)
        if stored:
            table.load(stored)
        elif config.initializer is not None:
            table.set_whole(self._make_first(config))
        if name in self._values:
            table.set_whole(self._values[name])
        return table

    def take_table(self, name: str, rule: Optim = NO_RULE, own: LocalTable | None = None) -> LocalTable:
        """Return the table that has the values from now on: the one that has them, with its state, if it
        learns by this rule, so that programs share it as on pservers; else `own`, or a new one."""
        table, values = self._tables.get(name), self._values.pop(name, None)
        if table is None or table.rule != rule:
            before, table = table, own or self._make_table(name, rule)
            self._tables[name] = table
            if before is not None:
                table.take(before)
        if values is not None:
            table.set_whole(values)
        return table

    def _find_stored(self, name: str) -> Set | None:
        return self.loaded if self.loaded and name in self.loaded.shapes else None

    def attach(self, names: Iterable[str], read: ReadRows) -> None:
        """Leave these tables to the pservers until the program ends, and release their values here."""
        self._live, self._live_names = read, frozenset(names)
        for name in self._live_names:
            self._values.pop(name, None)
            self._tables.pop(name, None)

    def follow(self, table: Table) -> None:
        """Leave all values to a Table of pslaunch.runtime.serving: they are those of its last refresh().

        It may lack those that do not learn. Raises ValueError if it is of another model.
        """
        shapes = table.set.shapes
        own = {name: one for name, one in self._configs.items() if name in shapes or not one.is_static}
        check_parameters(table.set, own)
        tables = [name for name in own if shapes[name].table]
        self.attach(tables, lambda keys: {name: table.lookup(own, name) for name, own in keys.items()})
        self._followed = table

    def detach(self) -> None:
        """Take all values from the pservers, to train in this process alone."""
        self._values.update({name: self.get_current(name) for name in self._live_names})
        self._live, self._live_names = None, frozenset()

    __getitem__ = get

    def set(self, name: str, value: Any) -> None:
        """Copy `value` in; raises ValueError if its shape differs."""
        self.replace({name: np.array(value, dtype=np.float32, order="C")})

    def replace(self, values: Mapping[str, F32]) -> None:
        """Take all values without a copy; none if a shape differs, which raises ValueError."""
        for name, one in values.items():
            if one.shape != (shape := self.get_shape(name)):
                raise ValueError(f"parameter {name} has the shape {shape}, the value {one.shape}")
            if self._live is not None:
                raise RuntimeError(
                    f"parameter {name}: pservers hold the values from train() to the end of the program; set "
                    "them before"
                )
        for name, one in values.items():
            if name in self._tables:
                self._tables[name].set_whole(one)
            else:
                self._values[name] = one
        self.changed.update(values)

    __setitem__ = set

    def get_array(self, name: str) -> F32:
        """Return the values themselves, [rows, cols]; training changes them in place. Of a table: a copy."""
        if self._followed is not None and name in self._followed.set.shapes:
            return self._followed.get(name).reshape(self.get_shape(name))
        self._get_whole_shape(name)
        found = self._values.get(name)
        if found is None and name in self._tables:
            found = self.get_current(name)
            if self._tables[name].rule is not NO_RULE:
                return found
            del self._tables[name]
        if found is None:
            config, stored = self.get_config(name), self._find_stored(name)
            found = read_array(stored, config) if stored else self._make_first(config)
        self._values[name] = found
        return found

    def _make_first(self, config: ParamConfig) -> F32:
        if config.initializer is None:
            return make_first_rows(config, np.arange(config.rows, dtype=np.uint64), get_settings().seed)
        values = np.array(config.initializer(config.name), dtype=np.float32, order="C")
        if values.size != config.rows * config.cols:
            raise ValueError(f"parameter {config.name}: initializer gave {values.shape}, not {config.shape}")
        return values.reshape(config.shape)

    def serialize(self, name: str, f: IO[bytes] | _HashedFile) -> None:
        """Write one parameter: v2's header of 16 bytes, then the values, little endian."""
        rows, cols = self.get_shape(name)
        f.write(_HEADER.pack(0, 4, rows * cols))
        for _, keys in split_rows(rows, cols):
            f.write(np.ascontiguousarray(self.get_rows({name: keys})[name], "<f4").data.cast("B"))

    def deserialize(self, name: str, f: IO[bytes]) -> None:
        """Read one parameter as `serialize` wrote it; raises ValueError if it is damaged."""
        shape = self.get_shape(name)
        header = f.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise ValueError(f"parameter {name}: {len(header)} bytes are too few for a header")
        version, width, size = _HEADER.unpack(header)
        if (version, width, size) != (0, 4, shape[0] * shape[1]):
            raise ValueError(
                f"parameter {name}: header (format {version}, {width} bytes a value, {size} values) does "
                f"not fit its shape {shape}"
            )
        values = np.empty(shape, dtype="<f4")
        left = values.reshape(-1).view(np.uint8)
        while left.size and (data := f.read(min(left.size, CHUNK_BYTES))):
            left[: len(data)] = np.frombuffer(data, np.uint8)
            left = left[len(data) :]
        if left.size or f.read(1):
            raise ValueError(f"parameter {name}: {'fewer' if left.size else 'more'} bytes than {size} values")
        self.replace({name: values.astype(np.float32, copy=False)})

    def to_tar(self, f: IO[bytes], names: Iterable[str] | None = None) -> None:
        """Write parameters, all without `names`, in v2's form. Equal parameters give equal bytes.

        The optimizer's state is left out, and a line says so once: save() keeps it.
        """
        if self.keeper is not None and self.keeper.stateful and not self._said:
            print(f"a .tar has values alone: the state of {self.keeper.stateful} is left out, which "
                  "parameters.save(DIR) keeps", file=sys.stderr)  # fmt: skip
            self._said = True
        own = _HashedFile(f)
        for name in self._configs if names is None else names:
            config = self.get_config(name)
            self._get_whole_shape(name)
            with _adding(own, name, _HEADER.size + 4 * config.rows * config.cols):
                self.serialize(name, own)
            encoded = param_config.encode(config)
            with _adding(own, name + _CONFIG_SUFFIX, len(encoded)):
                own.write(encoded)
        f.write(_make_end(own.digest.hexdigest(), own.size))
        self.written = True

    @staticmethod
    def from_tar(f: IO[bytes]) -> Parameters:
        """Return the parameters in a tar file of v2's form; raises ValueError if it is damaged."""
        try:
            start = f.tell()
            with tarfile.open(fileobj=f, mode="r:") as tar:
                members = list(tar)
                _check_end(f, start, members)
                return _read_tar(tar, members)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as e:
            where = f"{f.name}: " if isinstance(getattr(f, "name", None), str) else ""
            raise ValueError(f"{where}not a tar file of parameters: {e}") from None

    def init_from_tar(self, f: IO[bytes], exclude_params: Iterable[str] = ()) -> None:
        """Take the values of parameters that are both in a tar file and here."""
        other = Parameters.from_tar(f)
        names = (other.keys() & self._configs.keys()).difference(exclude_params)
        self.replace({name: other.get_array(name) for name in names})

    def save_tar(self, path: Path) -> None:
        """Write to_tar()'s file by rename: `path` is complete, old or absent at any time."""
        write_whole(path, self.to_tar)

    def save(
        self,
        folder: str | Path,
        *,
        files: Mapping[str, bytes] = MappingProxyType({}),
        names: Iterable[str] | None = None,
    ) -> None:
        """Write a set: the values of all parameters, and the optimizer's state (docs/checkpoint.md).

        With pservers in trainer 0, between its steps: each pserver writes its own part there. A set that is
        there stays whole until the new one is. `files`: other files of the set. `names`: these parameters'
        values alone, unless pservers save. Raises OSError that names the file and a remedy.
        """
        own = Path(folder).absolute()
        if self.keeper is not None and (names is None or self._live is not None):
            self.keeper.save(own, files)
        else:
            self.save_arrays(own, files, names=names)
        self.written = True

    def save_arrays(
        self,
        folder: Path,
        files: Mapping[str, bytes],
        *,
        names: Iterable[str] | None = None,
        rules: Mapping[str, tuple[Optim, State]] | None = None,
        about: Manifest | None = None,
    ) -> None:
        """Write a set of the values here, each with its rule and state, if it has them, and other files."""
        known, chosen = rules or {}, self._configs if names is None else names
        wholes = (self.make_whole(name, *known.get(name, ())) for name in chosen)
        write_set(folder, wholes, about or make_about(), files)

    def make_whole(self, name: str, rule: Optim = NO_RULE, state: State = State()) -> Whole:  # noqa: B008
        """Return a parameter for a set. Rows that it leaves out have the initial values of the set before."""
        config = self.get_config(name)
        if config.sparse:
            return (self._tables.get(name) or self._make_table(name)).make_whole(state)
        create = make_create(config, rule, get_settings().seed, table=False)
        parts = [self.get_current(name), *state.slots]
        return make_whole(config, create, state, parts, parts[0].size)

    def load(self, folder: str | Path) -> None:
        """Take the values of all parameters, and the optimizer's state, from a set.

        With pservers in all trainers, before the first training: they read it themselves. Raises SetError,
        which is a ValueError: it names the file and what is wrong, and nothing is changed.
        """
        if self._live is not None:
            raise RuntimeError("Parameters.load: pservers hold the values; load before the first training")
        found = Set(Path(folder).absolute())
        check_parameters(found, self._configs)
        if not get_settings().pservers:  # else they verify the parts that they take
            found.open_all()
        self.loaded = found
        self._values.clear()
        self._tables.clear()
        self.changed.clear()
        if self.keeper is not None:
            self.keeper.note_loaded()


def read_parameters(found: Set) -> Parameters:
    """Return the parameters that a set has, whose values are read when they are used. Raises SetError."""
    configs = {}
    for name, one in found.described.items():
        rows, cols = one["shape"]
        config = ParamConfig(
            name=name, rows=rows, cols=cols, sparse=one["table"], is_static=one.get("fixed", False)
        )
        configs[name], _ = find_init(found, config)
    parameters = Parameters(configs)
    check_parameters(found, configs)
    parameters.loaded = found
    return parameters


def _check_end(f: IO[bytes], start: int, members: Sequence[tarfile.TarInfo]) -> None:
    """Raise ValueError unless the file ends as a tar file, and has its digest, if it has one."""
    last = next((one for one in members if one.name == _DIGEST), None)
    if last is not None:
        f.seek(start)
        size = last.offset - start
        end = _make_end(hash_content(f, size), size)
        if f.read(len(end) + 1) != end:
            raise ValueError("it is damaged: its digest does not match its content, or it is cut short")
        return
    if members:
        f.seek(members[-1].offset_data + -(-members[-1].size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE)
    rest = f.read(tarfile.RECORDSIZE + 1)
    if rest.strip(b"\0") or not 2 * tarfile.BLOCKSIZE <= len(rest) <= tarfile.RECORDSIZE:
        raise ValueError("it is cut short, or has other bytes behind its end")


def _read_tar(tar: tarfile.TarFile, members: Sequence[tarfile.TarInfo]) -> Parameters:
    # A sparse member, of zeros that the file lacks, would take any memory.
    files = {info.name: info for info in members if info.isfile() and not info.issparse()}
    configs = {}
    for name in [name for name in files if name.endswith(_CONFIG_SUFFIX)]:
        try:
            config = param_config.decode(_open_member(tar, files[name]).read())
        except ValueError as e:
            raise ValueError(f"{name} in the tar file is damaged: {e}") from None
        configs[config.name] = config
    parameters = Parameters(configs)
    for name in parameters:
        if name not in files:
            raise ValueError(f"the tar file has {name}{_CONFIG_SUFFIX} but no {name}")
        rows, cols = parameters.get_shape(name)
        if files[name].size != _HEADER.size + 4 * rows * cols:
            raise ValueError(f"parameter {name}: {files[name].size} bytes for the shape {(rows, cols)}")
        parameters.deserialize(name, _open_member(tar, files[name]))
    return parameters


@contextmanager
def _adding(f: IO[bytes] | _HashedFile, name: str, size: int) -> Iterator[None]:
    """Let the caller write a member of a tar file: from Python 3.13 on addfile() wants all at once."""
    info = tarfile.TarInfo(name)
    info.size = size
    f.write(info.tobuf(tarfile.GNU_FORMAT))
    yield
    f.write(bytes(-size % tarfile.BLOCKSIZE))


def _make_end(digest: str, size: int) -> bytes:
    """Return the member with the digest, and the end of a tar file, after `size` bytes."""
    end = io.BytesIO()
    with _adding(end, _DIGEST, len(digest)):
        end.write(digest.encode())
    end.write(bytes(2 * tarfile.BLOCKSIZE))
    return end.getvalue() + bytes(-(size + end.tell()) % tarfile.RECORDSIZE)


def _open_member(tar: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    member = tar.extractfile(info)
    assert member is not None  # it is a file
    return member
