"""Tables of a model server against a dictionary: bases and deltas of any content, of any number of ports."""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pslaunch.runtime.engine.keeping import make_create, make_first_rows
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.engine.parameters import Parameters
from pslaunch.runtime.files.exports import NEWEST, name_export, set_newest, write_index
from pslaunch.runtime.files.manifest import MANIFEST, Manifest, write_manifest
from pslaunch.runtime.files.objects import CHANGED, FILE_HEAD, Content, PartFile, SetError
from pslaunch.runtime.files.saving import File, Header
from pslaunch.runtime.files.sets import Set, describe_part
from pslaunch.runtime.serving import Table

SEED, RUN = 7, 99
ROWS = 2**40
E = ParamConfig(name="e", rows=ROWS, cols=3, std=1.0, sparse=True)
F = ParamConfig(name="f", rows=40, cols=1, mean=0.5, std=0.1, sparse=True)
W = ParamConfig(name="w", rows=4, cols=2)
RULE = Optim(method="sgd", learning_rate=0.1)
Row = tuple[float, ...]
Step = tuple[bool, Mapping[int, Row], Mapping[int, Row]]  # a base, and rows of e and f


def deal(key: int, shards: int) -> int:
    """The shard of a key, in plain numbers."""
    x, most = (key + 0x9E3779B97F4A7C15) % 2**64, 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % most
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % most
    return ((x ^ (x >> 31)) >> 32) * shards >> 32


def encode(config: ParamConfig, flags: int, step: int, count: int, body: bytes) -> bytes:
    create = make_create(config, RULE, SEED, table=config.sparse)
    head = FILE_HEAD.pack(flags, len(create), step, count, 0, 0, 0) + create
    return head + bytes(-len(head) % 8) + body + bytes(-len(body) % 8)


def pack_rows(rows: Mapping[int, Row]) -> bytes:
    values = [value for row in rows.values() for value in row]
    return struct.pack(f"<{len(rows)}Q{len(values)}f", *rows, *values)


Chains = list[list[str]]  # each begins with a base


def export(root: Path, step: int, chains: Chains, one: Step, pservers: int = 1) -> None:
    """Write an export as pservers do; W is whole on port 0, filled with the step."""
    base, *tables = one
    name = name_export(RUN, step)
    if base:
        chains.append([])
    chains[-1].append(name)
    folder, files = root / name, []
    folder.mkdir(parents=True)
    for pserver in range(pservers):
        header = Header(job_id="", epoch=0, run=RUN, pserver=pserver, pservers=pservers)
        with closing(File(folder, header.name, header.encode())) as file:
            for config, rows in zip((E, F), tables, strict=True):
                own = {k: row for k, row in rows.items() if deal(k, pservers) == pserver}
                file.append(encode(config, 0 if base else CHANGED, step, len(own), pack_rows(own)))
            count = 8 if pserver == 0 else 0
            file.append(encode(W, 0, step, count, struct.pack("<f", step) * count))
            files += [file.finish(), *write_index(folder / header.name)]
    with closing(Content(folder / "shard-00000-000.bin")) as f:
        about = describe_part(PartFile(f))
    extra = {"chain": chains[-1], "before": chains[-2] if len(chains) > 1 else []}
    manifest = Manifest(run=RUN, step=step, files=files, extra=extra, **about)
    write_manifest(folder, manifest)
    set_newest(root, manifest, name)


def expect(config: ParamConfig, rows: Mapping[int, Row], keys: Sequence[int]) -> np.ndarray:
    out = make_first_rows(config, np.array(keys, np.uint64), SEED)
    for i, key in enumerate(keys):
        if key in rows:
            out[i] = rows[key]
    return out


floats = st.floats(-8, 8, width=32)
keys_of_e = st.one_of(st.integers(0, 60), st.integers(0, 40).map(lambda i: i << 34), st.integers(0, ROWS - 1))
tables_of_e = st.dictionaries(keys_of_e, st.tuples(floats, floats, floats), max_size=40)
tables_of_f = st.dictionaries(st.integers(0, 39), st.tuples(floats), max_size=10)
steps = st.lists(st.tuples(st.booleans(), tables_of_e, tables_of_f), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(steps, st.integers(1, 3), st.lists(keys_of_e, max_size=20))
def test_a_reader_has_what_was_exported_last(found: list[Step], pservers: int, others: list[int]) -> None:
    with tempfile.TemporaryDirectory() as made:
        root, chains = Path(made), Chains()
        follower: Table | None = None
        now: tuple[Mapping[int, Row], Mapping[int, Row]] = {}, {}
        for number, (base, e, f) in enumerate(found, 1):
            one = base or number == 1, e, f
            now = (e, f) if one[0] else ({**now[0], **e}, {**now[1], **f})
            export(root, number, chains, one, pservers)
            if follower is None:
                follower = Table(root)
            else:
                assert follower.refresh()
            assert not follower.refresh()
            for table in (follower, Table(root)):
                asked = [*now[0], *others, *range(50)]
                assert table.step == number
                np.testing.assert_array_equal(table.lookup(asked, "e"), expect(E, now[0], asked))
                np.testing.assert_array_equal(table.lookup(np.arange(40), "f"), expect(F, now[1], range(40)))
                np.testing.assert_array_equal(table.get("w"), np.full(8, number, np.float32))
        assert {path.name for path in root.glob("export-*")} >= set(chains[-1])


def make_chain(root: Path) -> Chains:
    chains: Chains = []
    export(root, 1, chains, (True, {5: (1.0, 2.0, 3.0)}, {1: (4.0,)}))
    export(root, 2, chains, (False, {5: (2.0, 2.0, 3.0), 6: (0.0, 0.0, 0.0)}, {}))
    return chains


def test_shapes_and_keys(tmp_path: Path) -> None:
    make_chain(tmp_path)
    table = Table(tmp_path)
    assert table.lookup(np.zeros((2, 0, 3), np.int64), "e").shape == (2, 0, 3, 3)
    found = table.lookup([[5, 6], [6, 5]], "e")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found[0], found[1, ::-1])
    np.testing.assert_array_equal(found[0, 0], [2, 2, 3])
    found[:] = 0  # the caller's own
    assert not table.get("w").flags.writeable
    for keys, text in (([0.5], "whole numbers"), ([-1], "has the keys 0 to"), ([ROWS], "has the keys 0 to")):
        with pytest.raises(ValueError, match=text):
            table.lookup(keys, "e")
    for name in ("", "g"):
        with pytest.raises(ValueError, match="name one of: e, f"):
            table.lookup([1], name)


def test_a_delta_alone_is_no_set(tmp_path: Path) -> None:
    ((base, delta),) = make_chain(tmp_path)
    Set(tmp_path / base).open_all()
    with pytest.raises(SetError, match="has only rows that changed"):
        Set(tmp_path / delta).open_all()


def test_any_set_is_read_too(tmp_path: Path) -> None:
    """With state and from one process: the index is made by the reader."""
    configs = {"w": W, "f": F}
    parameters = Parameters(configs)
    rows = parameters["f"]
    rows[[3, 20]] = 9
    parameters["f"] = rows
    parameters["w"] = np.ones((4, 2))
    parameters.save(tmp_path)
    table = Table(tmp_path)
    np.testing.assert_array_equal(table.lookup(range(40)), rows)
    assert not table.refresh()
    rows[5] = 1
    parameters["f"] = rows
    parameters.save(tmp_path)
    assert table.refresh()
    np.testing.assert_array_equal(table.lookup(range(40)), rows)


def test_older_folders_go_with_the_next_chain_but_one(tmp_path: Path) -> None:
    chains = make_chain(tmp_path)
    first, table = chains[0], Table(tmp_path)
    old = table.lookup([5, 6], "e")
    export(tmp_path, 3, chains, (True, {5: (3.0, 2.0, 3.0)}, {}))
    export(tmp_path, 4, chains, (False, {6: (3.0, 2.0, 3.0)}, {}))
    assert all((tmp_path / name).exists() for name in first)
    export(tmp_path, 5, chains, (True, {}, {}))
    assert [(tmp_path / name).exists() for name in first] == [False, False]
    np.testing.assert_array_equal(table.lookup([5, 6], "e"), old)  # its maps stay
    assert table.refresh()
    np.testing.assert_array_equal(table.lookup([5, 6], "e"), expect(E, {}, [5, 6]))


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)


DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "shard-00000-000.bin": lambda path: flip(path, -60),
    "shard-00000-000.index": lambda path: flip(path, 0),
    MANIFEST: lambda path: flip(path, 30),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("level", [0, 1])
def test_damage_is_named_and_the_old_values_stay(tmp_path: Path, name: str, level: int) -> None:
    root, other = tmp_path / "a", tmp_path / "b"
    chains: Chains = []
    export(root, 1, chains, (True, {5: (1.0, 2.0, 3.0)}, {}))
    table = Table(root)
    export(root, 2, chains, (False, {5: (2.0, 2.0, 3.0)}, {}))
    (chain,) = chains
    shutil.copytree(root, other)
    path = other / chain[level] / name
    DAMAGE[name](path)
    with pytest.raises(SetError, match=name):
        Table(other)
    path.unlink()
    if (level, name) != (0, MANIFEST):  # its parts say the same
        with pytest.raises((SetError, OSError), match=name):
            Table(other)
    bad = root / chain[1] / name
    DAMAGE[name](bad)
    with pytest.raises(SetError, match=name):
        table.refresh()
    np.testing.assert_array_equal(table.lookup([5], "e"), [[1, 2, 3]])
    (root / NEWEST).unlink()
    with pytest.raises(SetError, match="no set of saved parameters"):
        Table(root)
