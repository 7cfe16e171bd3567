"""Parameters by their v2 names: values by name, and their tar file.

Values are made on first use, so that a large table that lives on pservers costs a trainer nothing.
"""

from __future__ import annotations

import io
import os
import struct
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from . import _core, param_config, publish
from .arrays import F32, U64
from .kernel_numbers import KINDS
from .layer import Layer
from .network import collect_params, sort_layers
from .param_config import ParamConfig
from .settings import get_settings

__all__ = ["Parameters", "create"]
publish(__name__, __all__)

_HEADER = struct.Struct("<IIQ")  # v2: format 0, bytes of a value, number of values
_CONFIG_SUFFIX = ".protobuf"


def create(layers: Layer | Iterable[Layer]) -> Parameters:
    """The parameters of all layers below `layers`, with their first values."""
    outputs = [layers] if isinstance(layers, Layer) else list(layers)
    return Parameters(collect_params(sort_layers(outputs)))


def make_first_rows(config: ParamConfig, keys: U64, seed: int) -> F32:
    """First values of some rows, [k, cols]: from (seed, name, row, column) alone, wherever they are made."""
    out = np.empty((len(keys), config.cols), dtype=np.float32)
    table = _core.hash_name(config.name)
    _core.init_rows(out, keys, seed, table, KINDS[config.kind], config.mean, config.std)
    return out


class Parameters:
    """A mapping from names to float32 matrices. What it gives are copies, what is set is copied in."""

    def __init__(self, configs: Mapping[str, ParamConfig] | None = None) -> None:
        self._configs = dict(configs or {})
        self._values: dict[str, F32] = {}
        self.changed: set[str] = set()  # values that are not the configuration's first ones
        self.written = False  # someone wrote them to a file
        # While pservers hold tables: gives the current values of one, None for other parameters.
        self.live: Callable[[str], F32 | None] | None = None

    def keys(self) -> list[str]:
        """Names in the order of the layers."""
        return list(self._configs)

    names = keys

    def has_key(self, name: str) -> bool:
        """Whether there is a parameter of this name."""
        return name in self._configs

    def __contains__(self, name: object) -> bool:
        return name in self._configs

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def get_shape(self, name: str) -> tuple[int, int]:
        """Rows and columns; raises KeyError naming those that there are."""
        return self.get_config(name).shape

    def get_config(self, name: str) -> ParamConfig:
        """What else is known of a parameter."""
        found = self._configs.get(name)
        if found is None:
            raise KeyError(f"no parameter {name!r}; there are {', '.join(self._configs) or 'none'}")
        return found

    def check(self, where: str, params: Mapping[str, ParamConfig]) -> None:
        """Raise ValueError, beginning with `where`, unless the parameters of a network are here."""
        for name, config in params.items():
            if name not in self:
                raise ValueError(f"{where}: parameters lack {name}, which the network has")
            if self.get_shape(name) != config.shape:
                raise ValueError(
                    f"{where}: parameter {name} is {self.get_shape(name)}, the network's {config.shape}"
                )

    def get(self, name: str) -> F32:
        """A copy of a parameter's values, [rows, cols]."""
        values = self.get_current(name)
        return values.copy() if values is self._values.get(name) else values

    def get_current(self, name: str) -> F32:
        """The values as they are now, [rows, cols], wherever they live; not to be changed."""
        self.get_config(name)
        values = self.live(name) if self.live is not None else None
        return self.get_array(name) if values is None else values

    __getitem__ = get

    def set(self, name: str, value: Any) -> None:
        """Copy `value` in; raises ValueError where its shape is another."""
        shape = self.get_shape(name)
        values = np.asarray(value, dtype=np.float32)
        if values.shape != shape:
            raise ValueError(f"parameter {name} has the shape {shape}, the value {values.shape}")
        if self.live is not None:
            raise RuntimeError(f"parameter {name}: pservers hold the values now; set them before train()")
        np.copyto(self.get_array(name), values)
        self.changed.add(name)

    __setitem__ = set

    def get_array(self, name: str) -> F32:
        """The values themselves, [rows, cols], which training changes in place."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = self._make_first(self.get_config(name))
        return found

    def adopt(self, name: str, values: F32) -> None:
        """Take `values`, [rows, cols], as they are, in place of what is here."""
        assert values.shape == self.get_shape(name)
        self._values[name] = values

    def _make_first(self, config: ParamConfig) -> F32:
        if config.initializer is None:
            return make_first_rows(config, np.arange(config.rows, dtype=np.uint64), get_settings().seed)
        values = np.array(config.initializer(config.name), dtype=np.float32, order="C")
        if values.size != config.rows * config.cols:
            raise ValueError(f"parameter {config.name}: initializer gave {values.shape}, not {config.shape}")
        return values.reshape(config.shape)

    def serialize(self, name: str, f: IO[bytes]) -> None:
        """Write one parameter: v2's header of 16 bytes, then the values, little endian."""
        values = self.get_current(name)
        f.write(_HEADER.pack(0, 4, values.size))
        f.write(np.ascontiguousarray(values, "<f4").data.cast("B"))

    def deserialize(self, name: str, f: IO[bytes]) -> None:
        """Read one parameter as `serialize` wrote it; raises ValueError where it is damaged."""
        rows, cols = self.get_shape(name)
        data = f.read()
        if len(data) < _HEADER.size:
            raise ValueError(f"parameter {name}: {len(data)} bytes are no header")
        version, width, size = _HEADER.unpack_from(data)
        if (version, width) != (0, 4) or size != rows * cols or len(data) != _HEADER.size + 4 * size:
            raise ValueError(
                f"parameter {name}: header (format {version}, {width} bytes a value, {size} values) and "
                f"{len(data)} bytes do not fit its shape {(rows, cols)}"
            )
        self.set(name, np.frombuffer(data, dtype="<f4", offset=_HEADER.size).reshape(rows, cols))

    def to_tar(self, f: IO[bytes]) -> None:
        """Write all parameters in v2's form. Equal parameters give equal bytes."""
        with tarfile.open(fileobj=f, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for name, config in self._configs.items():
                values = io.BytesIO()
                self.serialize(name, values)
                _add(tar, name, values.getvalue())
                _add(tar, name + _CONFIG_SUFFIX, param_config.encode(config))
        self.written = True

    @staticmethod
    def from_tar(f: IO[bytes]) -> Parameters:
        """Parameters from a tar file in v2's form; raises ValueError where it is damaged."""
        blobs = _read_tar(f)
        configs: dict[str, ParamConfig] = {}
        for entry, data in blobs.items():
            if not entry.endswith(_CONFIG_SUFFIX):
                continue
            try:
                config = param_config.decode(data)
            except ValueError as e:
                raise ValueError(f"{entry} in the tar file is damaged: {e}") from None
            configs[config.name] = config
        parameters = Parameters(configs)
        for name in configs:
            if name not in blobs:
                raise ValueError(f"the tar file has {name}{_CONFIG_SUFFIX} but no {name}")
            parameters.deserialize(name, io.BytesIO(blobs[name]))
        return parameters

    def init_from_tar(self, f: IO[bytes], exclude_params: Iterable[str] = ()) -> None:
        """Take values from a tar file for those parameters that are in it and here."""
        skip = set(exclude_params)
        other = Parameters.from_tar(f)
        for name in other.names():
            if name in self and name not in skip:
                self.set(name, other.get_array(name))

    def save(self, path: Path) -> None:
        """Write a tar file by rename: `path` is whole, old or absent at any time."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with part.open("wb") as f:
                self.to_tar(f)
                f.flush()
                os.fsync(f.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _read_tar(f: IO[bytes]) -> dict[str, bytes]:
    blobs: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=f, mode="r:") as tar:
            for info in tar:
                member = tar.extractfile(info)
                if member is not None:
                    blobs[info.name] = member.read()
    except tarfile.TarError as e:
        raise ValueError(f"this is no tar file of parameters: {e}") from None
    return blobs
