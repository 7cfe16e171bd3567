"""Parameters by their v2 names: values by name, and their tar file.

Values are created on first use, so that a large table on pservers takes no memory in a trainer.
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

_HEADER = struct.Struct("<IIQ")  # v2: format 0, bytes per value, number of values
_CONFIG_SUFFIX = ".protobuf"


def create(layers: Layer | Iterable[Layer]) -> Parameters:
    """Return the parameters of all layers below `layers`, with their initial values."""
    outputs = [layers] if isinstance(layers, Layer) else list(layers)
    return Parameters(collect_params(sort_layers(outputs)))


def make_first_rows(config: ParamConfig, keys: U64, seed: int) -> F32:
    """Return initial values of rows, [k, cols]: they depend on (seed, name, row, column) alone."""
    out = np.empty((len(keys), config.cols), dtype=np.float32)
    table = _core.hash_name(config.name)
    _core.init_rows(out, keys, seed, table, KINDS[config.kind], config.mean, config.std)
    return out


class Parameters:
    """Mapping from names to float32 matrices. Returned values are copies, and assigned ones are copied in."""

    def __init__(self, configs: Mapping[str, ParamConfig] | None = None) -> None:
        self._configs = dict(configs or {})
        self._values: dict[str, F32] = {}
        self.changed: set[str] = set()  # parameters that differ from the configured initial values
        self.written = False  # True once they were written to a file
        # While pservers hold tables: returns the current values of a table, None for other parameters.
        self.live: Callable[[str], F32 | None] | None = None

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

    def get(self, name: str) -> F32:
        """Return a copy of a parameter's values, [rows, cols]."""
        values = self.get_current(name)
        return values.copy() if values is self._values.get(name) else values

    def get_current(self, name: str) -> F32:
        """Return the current values, [rows, cols], from pservers too; read-only."""
        self.get_config(name)
        values = self.live(name) if self.live is not None else None
        return self.get_array(name) if values is None else values

    __getitem__ = get

    def set(self, name: str, value: Any) -> None:
        """Copy `value` in; raises ValueError if its shape differs."""
        shape = self.get_shape(name)
        values = np.asarray(value, dtype=np.float32)
        if values.shape != shape:
            raise ValueError(f"parameter {name} has the shape {shape}, the value {values.shape}")
        if self.live is not None:
            raise RuntimeError(f"parameter {name}: pservers hold the values during train(); set them before")
        np.copyto(self.get_array(name), values)
        self.changed.add(name)

    __setitem__ = set

    def get_array(self, name: str) -> F32:
        """Return the values themselves, [rows, cols]; training changes them in place."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = self._make_first(self.get_config(name))
        return found

    def adopt(self, name: str, values: F32) -> None:
        """Replace the values by `values`, [rows, cols], without a copy."""
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
        """Read one parameter as `serialize` wrote it; raises ValueError if it is damaged."""
        rows, cols = self.get_shape(name)
        data = f.read()
        if len(data) < _HEADER.size:
            raise ValueError(f"parameter {name}: {len(data)} bytes are too few for a header")
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
        """Return the parameters in a tar file of v2's form; raises ValueError if it is damaged."""
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
        """Take the values of parameters that are both in a tar file and here."""
        skip = set(exclude_params)
        other = Parameters.from_tar(f)
        for name in other.names():
            if name in self and name not in skip:
                self.set(name, other.get_array(name))

    def save(self, path: Path) -> None:
        """Write a tar file by rename: `path` is complete, old or absent at any time."""
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
        raise ValueError(f"not a tar file of parameters: {e}") from None
    return blobs
