"""`pslaunch show` and `pslaunch convert`: sets for people, and as files of other programs.

`python -m pslaunch.runtime.engine.convert show PATH`
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..files.foreign import AnyArray, read_npz, read_pdparams, write_npz, write_pdparams
from ..files.joined import find_items, find_steps, join, read_rows, read_values
from ..files.objects import ObjectShape, SetError, Whole, describe_object, read_shape
from ..files.sets import Set, count_before, write_set
from .keeping import get_bytes, make_about
from .param_config import ParamConfig
from .parameters import Parameters, read_parameters

USAGE = """usage: pslaunch show PATH
       pslaunch convert FROM TO
PATH is a set: a folder with parameters. One of FROM and TO is a set, the other one a file: .npz with all,
.tar (PaddlePaddle v2) or .pdparams (PaddlePaddle 2) with the values alone."""
NOTES = "@set"  # the array of an .npz with what its other arrays do not say


def show(folder: Path) -> Iterator[str]:
    """Yield lines about a set, whose files are all verified. Raises SetError, OSError."""
    found = Set(folder, deltas=True)
    about, ports = found.manifest, found.layout
    found.open_all()
    yield (
        f"{folder}: job {about.job_id or 'by hand'}, epoch {about.epoch}, step {about.step}, "
        f"pass {about.passes}, of {ports.pservers} pservers with {ports.ports_num} + "
        f"{ports.ports_num_for_sparse} ports, digest {found.digest}"
    )
    for entry in about.files:
        yield f"  {entry.name}: {entry.bytes} bytes, sha256 {entry.sha256}"
    for shape in found.shapes.values():
        items = find_items(found, shape.name)
        rows, cols = found.described[shape.name]["shape"]
        changed = " changed" if any(item.changed for item in items) else ""
        kind = (
            f"{sum(item.count for item in items)}{changed} of {rows} rows of {cols}"
            if shape.table
            else f"{rows}x{cols}"
        )
        steps, is_torn = find_steps(items)
        torn = ", torn: some values have one step more" if is_torn else ""
        state = f", state {shape.slots} x" if shape.slots else ""
        yield f"{shape.name}: {kind}, {steps} steps of {shape.method}{state}{torn}, {digest(found, shape)}"


def digest(found: Set, shape: ObjectShape) -> str:
    """Return a digest of an object's values and state, whatever parts they are in."""
    total = hashlib.sha256()
    if shape.table:  # the sum over rows of a hash of each: they are in no order
        whole = np.zeros(1, np.uint64)
        for keys, rows, _ in read_rows(found, shape.name):
            hashed = keys * np.uint64(0x9E3779B97F4A7C15)
            for column in rows.reshape(len(keys), -1).view(np.uint32).T:
                hashed = (hashed ^ column ^ (hashed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            whole += hashed.sum(dtype=np.uint64)
        total.update(get_bytes(whole))
    else:
        values = np.empty(shape.total, np.float32)
        for slot in range(1 + shape.slots):
            read_values(found, shape.name, slot, values)
            total.update(get_bytes(values))
    return f"digest {total.hexdigest():.16}"


def convert(source: Path, target: Path) -> None:
    """Write a set as a file, or a file as a set. Raises SetError, OSError."""
    if target.suffix in WRITERS and source.is_dir():
        WRITERS[target.suffix](source, target)
    elif source.suffix in READERS and target.suffix not in WRITERS:
        READERS[source.suffix](source, target)
    else:
        raise SetError(f"can't convert {source} to {target}: one is a set, the other .npz, .tar or .pdparams")


def _write_npz(source: Path, target: Path) -> None:
    found = Set(source)
    found.open_all()

    def make() -> Iterator[tuple[str, AnyArray]]:
        notes = {}
        for name, shape in found.shapes.items():
            (keys, values, state), items = join(found, name), find_items(found, name)
            rows = found.described[name]["shape"]
            notes[name] = {"create": items[0].create.hex(), "shape": rows} | count_before(items)
            yield name, values if shape.table else values.reshape(rows)
            if keys is not None:
                yield f"{name}@keys", keys
            if state is not None:
                yield f"{name}@state", state
        yield NOTES, np.frombuffer(json.dumps(notes).encode(), np.uint8)

    write_npz(target, make())


def _read_npz(source: Path, target: Path) -> None:
    arrays = read_npz(source)
    if NOTES not in arrays:
        _write_values(target, arrays, str(source))
        return
    try:
        notes = json.loads(arrays.pop(NOTES).tobytes())
        wholes = [_make_whole(name, note, arrays) for name, note in notes.items()]
    except (AttributeError, LookupError, TypeError, ValueError, struct.error) as e:
        raise SetError(f"{source} is no set of `pslaunch convert`: {e}") from None
    write_set(target.absolute(), wholes, make_about(), {})


def _make_whole(name: str, note: dict[str, Any], arrays: dict[str, AnyArray]) -> Whole:
    """Return an object of an .npz; its owner may have changed the arrays. Raises ValueError, LookupError."""
    create, (rows, cols) = bytes.fromhex(note.pop("create")), note.pop("shape")
    keys, state = arrays.get(f"{name}@keys"), arrays.get(f"{name}@state", ())
    parts = [one.astype(np.float32, copy=False) for one in (arrays[name], *state)]
    count = parts[0].size if keys is None else len(keys)
    pieces = parts if keys is None else [keys.astype(np.uint64), np.concatenate(parts, axis=1)]
    shape = read_shape(describe_object(create))
    if sum(one.size for one in pieces) != count * (shape.row_floats + shape.table) or (
        count != shape.total and not shape.table
    ):
        raise ValueError(f"{name} has {count} values or rows, and not what {rows}x{cols} and its state take")
    return Whole(shape=(rows, cols), create=create, count=count, pieces=map(get_bytes, pieces), **note)


def _write_tar(source: Path, target: Path) -> None:
    _get_whole(source).save_tar(target.absolute())


def _write_pdparams(source: Path, target: Path) -> None:
    found = _get_whole(source)
    arrays = {name: found.get(name) for name in found}
    write_pdparams(target.absolute(), {n: one[0] if one.shape[0] == 1 else one for n, one in arrays.items()})


def _get_whole(source: Path) -> Parameters:
    found = Set(source.absolute())
    slots = sorted({shape.method for shape in found.shapes.values() if shape.slots})
    if slots:
        print(f"the state of {', '.join(slots)} is left out; an .npz keeps it", file=sys.stderr)
    return read_parameters(found)


def _read_tar(source: Path, target: Path) -> None:
    with source.open("rb") as f:
        Parameters.from_tar(f).save(target)


def _read_pdparams(source: Path, target: Path) -> None:
    _write_values(target, read_pdparams(source), str(source))


def _write_values(target: Path, arrays: dict[str, AnyArray], where: str) -> None:
    found = Parameters()
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu":
            raise SetError(f"{where}: {name} has values of {array.dtype}, expected numbers")
        values = array.reshape(array.shape[0] if array.ndim > 1 else 1, -1)
        found.extend({name: ParamConfig(name=name, rows=values.shape[0], cols=values.shape[1])})
        found.set(name, values)
    found.save(target)


WRITERS = {".npz": _write_npz, ".tar": _write_tar, ".pdparams": _write_pdparams}
READERS = {".npz": _read_npz, ".tar": _read_tar, ".pdparams": _read_pdparams}


def main(argv: Sequence[str]) -> int:
    command, *paths = argv or [""]
    if (command, len(paths)) not in (("show", 1), ("convert", 2)):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        if command == "convert":
            convert(Path(paths[0]), Path(paths[1]))
        for line in show(Path(paths[0])) if command == "show" else ():
            print(line)
    except MemoryError as e:
        print(f"pslaunch {command}: {e}: a set and .npz have only the rows in use", file=sys.stderr)
        return 1
    except (OSError, ValueError) as e:
        print(f"pslaunch {command}: {e}", file=sys.stderr)
        return 74 if isinstance(e, OSError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
