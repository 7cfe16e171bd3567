"""Values that servers load before they serve: each takes its part of a file of parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...client.run import MODEL_NAME
from ...engine.kernel_numbers import Optim
from ...engine.param_config import ParamConfig
from ...engine.parameters import Parameters
from ...files import blocks
from ...pserver.threads import First


@dataclass(frozen=True, kw_only=True, slots=True)
class Ports:
    """The ports of server `server` among those of all servers."""

    server: int
    servers: int
    dense: int  # of each server
    sparse: int  # 0: tables are at the dense ones


def read_values(dirname: str, configs: Mapping[str, ParamConfig]) -> tuple[Parameters, str]:
    """Return the values of fleet.save_persistables(), and the sha256 of their file.

    Raises ValueError if they do not fit.
    """
    where, path = f"fleet.init_server({dirname!r})", Path(dirname) / MODEL_NAME
    try:
        with path.absolute().open("rb") as f:
            found = Parameters.from_tar(f)
            f.seek(0)
            sha256 = hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise ValueError(
            f"{where}: {path.absolute()}: {e.strerror}; fleet.save_persistables(exe, {dirname!r}) writes it, "
            "and every server needs a copy"
        ) from None
    except ValueError as e:
        raise ValueError(f"{where}: {e}") from None
    for name, config in configs.items():
        if name not in found:
            raise ValueError(f"{where}: {path} lacks {name}; it has {', '.join(found.keys())}")
        if (shape := found.get_shape(name)) != config.shape:
            raise ValueError(f"{where}: {path} has {name} with the shape {shape}, the program {config.shape}")
        if not np.isfinite(found.get_array(name)).all():
            raise ValueError(f"{where}: {path} has values of {name} that are not finite; take an older file")
    return found, sha256


def deal_values(
    values: Parameters, dense: Mapping[str, Optim], tables: Sequence[str], ports: Ports
) -> list[list[First]]:
    """Return the values for each port of a server; `dense` and `tables` in the order of their creation."""
    dealt: list[list[First]] = [[] for _ in range(ports.dense + ports.sparse)]
    first_block = 0
    for name, rule in dense.items():
        whole = rule.kernel.whole
        array = values.get_array(name).reshape(-1)
        pieces = blocks.place(array.size, first_block, ports.servers * ports.dense, whole=whole)
        first_block += blocks.count_blocks(array.size, whole=whole)
        for port in range(ports.dense):
            shard = ports.server * ports.dense + port
            own = [array[p.start : p.start + p.length] for p in pieces if p.shard == shard]
            dealt[port].append((name, np.concatenate([array[:0], *own]), 0, 0, 1))
    begin, count = (ports.dense, ports.sparse) if ports.sparse else (0, ports.dense)
    for name in tables:
        rows = values.get_array(name)
        for port in range(count):
            shard = ports.server * count + port
            dealt[begin + port].append((name, rows, rows.shape[1], shard, ports.servers * count))
    return dealt
