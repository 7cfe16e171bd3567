"""docs/checkpoint.md against the code, and files that are not what they should be."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pslaunch.runtime.engine import convert
from pslaunch.runtime.engine.keeping import make_create
from pslaunch.runtime.engine.kernel_numbers import Optim
from pslaunch.runtime.engine.param_config import ParamConfig
from pslaunch.runtime.files import objects, saving
from pslaunch.runtime.files.objects import Content, PartFile, SetError
from support import joined
from support.constants import CONSTANTS
from support.hostile import damaged, spoilt
from support.pages import rows, words

pytestmark = pytest.mark.asan

PAGE = "checkpoint.md"
HEADER = saving.Header(
    job_id="job",
    epoch=3,
    run=2**63,
    pserver=1,
    pservers=2,
    port=0,
    ports_num=1,
    ports_num_for_sparse=0,
    num_gradient_servers=2,
    finished=True,
)
FORMS = {"u32": "I", "u64": "Q", "f32": "f", "f64": "d"}


def layout(heading: str) -> str:
    """The documented fields as a struct's format; offsets are checked."""
    form = "<"
    for offset, kind, _ in rows(PAGE, heading):
        if kind in FORMS:
            assert int(offset) == struct.calcsize(form)
            form += FORMS[kind]
    return form


def test_the_layouts_are_the_documented_ones() -> None:
    assert layout("An object") == objects.FILE_HEAD.format
    assert layout("Description of an object") == objects.CREATE.format
    assert objects.FILE_HEAD.size == CONSTANTS["PS_SAVE_HEAD_BYTES"]
    assert objects.CREATE.size == CONSTANTS["PS_CREATE_BYTES"]
    assert (CONSTANTS["PS_SAVE_TORN"], CONSTANTS["PS_SAVE_CHANGED"]) == (objects.TORN, objects.CHANGED)
    file = rows(PAGE, "The file")
    assert words(file[0][2])[0].encode() == saving.FILE_MAGIC
    assert [row[0] for row in file[:4]] == ["0", "8", "12", str(saving.START.size)]
    assert file[1][2].endswith(f": {saving.FILE_VERSION}")
    assert file[-1][1] == f"{saving.DIGEST_BYTES} bytes"


def test_the_header_is_the_documented_one() -> None:
    assert [words(name)[0] for name, _ in rows(PAGE, "The header")] == [
        f.name for f in dataclasses.fields(saving.Header)
    ]


def test_a_header_comes_back() -> None:
    raw = HEADER.encode()
    assert len(raw) % 8 == 0
    found, length = saving.decode_start(raw + b"more")
    assert (saving.Header.parse(found), length) == (HEADER, len(raw))
    assert HEADER.name == "shard-00001-000.bin"


@given(st.integers(0, len(HEADER.encode()) - 1))
def test_a_header_that_is_cut_off_is_an_error(n: int) -> None:
    with pytest.raises(ValueError):
        saving.decode_start(HEADER.encode()[:n])


@given(spoilt(dataclasses.asdict(HEADER)))
@example(dataclasses.asdict(HEADER) | {"pservers": 10**12})
@example(dataclasses.asdict(HEADER) | {"ports_num": 10**12, "finished": 1})
def test_a_header_of_anything_is_a_header_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("header")
    write(folder, encode(data))
    with pytest.raises(SetError, match=re.escape(str(folder))):  # others are missing
        joined.load(folder)


def encode(header: object) -> bytes:
    text = json.dumps(header).encode()
    return saving.START.pack(saving.FILE_MAGIC, saving.FILE_VERSION, len(text)) + text


def test_a_header_that_is_nested_is_an_error() -> None:
    text = b"[" * 60000
    with pytest.raises(ValueError, match="nested too deeply"):
        saving.decode_start(saving.START.pack(saving.FILE_MAGIC, saving.FILE_VERSION, len(text)) + text)


def write(folder: Path, content: bytes, name: str = HEADER.name) -> Path:
    """A file with a good digest."""
    path = folder / name
    path.write_bytes(content + hashlib.sha256(content).digest())
    return path


def test_another_version_is_named(tmp_path: Path) -> None:
    raw = bytearray(HEADER.encode())
    raw[8] = 9
    with pytest.raises(SetError, match="version 9, expected version 4"):
        PartFile(Content(write(tmp_path, bytes(raw))))


@given(st.binary(min_size=1, max_size=300))
def test_objects_that_make_no_sense_are_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("bad")
    with pytest.raises(SetError, match="shard-00001"):
        PartFile(Content(write(folder, HEADER.encode() + data)))


OF_ONE = [dataclasses.replace(HEADER, pserver=i) for i in range(2)]


def make_object(*, table: bool, total: int = 5, n: int = 3, dim: int = 2) -> bytes:
    """One object of a shard: n values, or rows of `dim` values, and no state."""
    config = ParamConfig(name="name", rows=total, cols=dim if table else 1)
    what = make_create(config, Optim(method="sgd", learning_rate=0.0), 1, table=table)
    body = objects.FILE_HEAD.pack(0, len(what), 7, n, 0, 0, 0) + what
    body += bytes(-len(body) % 8)
    body += struct.pack(f"<{n}Q", *range(n)) + bytes(4 * n * dim) if table else bytes(4 * n)
    return body + bytes(-len(body) % 8)


WHOLE = [make_object(table=False, n=n) + make_object(table=True, n=n + 1) for n in (5, 0)]


@given(st.data())
def test_damaged_objects_are_an_error_or_numbers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("objects")
    for header, whole in zip(OF_ONE, WHOLE, strict=True):
        write(folder, header.encode() + data.draw(st.just(whole) | damaged(whole)), header.name)
    try:
        joined.load(folder)
    except SetError as e:
        assert str(folder) in str(e)


@pytest.mark.parametrize(("total", "n"), [(2**62, 3), (2**62, 0), (6, 3)])
def test_a_number_of_values_that_the_shards_do_not_have_is_an_error(
    tmp_path: Path, total: int, n: int
) -> None:
    for header in OF_ONE:
        write(tmp_path, header.encode() + make_object(table=False, total=total, n=n), header.name)
    with pytest.raises(SetError, match=f"lacks values of name: its share of {total} is"):
        joined.load(tmp_path)


def test_tables_of_other_sizes_are_an_error(tmp_path: Path) -> None:
    for header in OF_ONE:
        write(tmp_path, header.encode() + make_object(table=True, dim=1 + header.pserver), header.name)
    with pytest.raises(SetError, match="the parts have different parameters"):
        joined.load(tmp_path)


def test_a_file_under_the_name_of_another_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER.encode(), "shard-00000-000.bin")
    with pytest.raises(SetError, match=f"{path}: the content is that of {HEADER.name}"):
        joined.load(tmp_path)


def test_files_of_a_training_belong_together(tmp_path: Path) -> None:
    with pytest.raises(SetError, match="no set of saved parameters"):
        joined.load(tmp_path)
    write(tmp_path, HEADER.encode())
    with pytest.raises(SetError, match=r"shard-00000-000\.bin: missing"):
        joined.load(tmp_path)
    other = dataclasses.replace(HEADER, run=1, pserver=0).encode()
    (tmp_path / "shard-00000-000.bin").write_bytes(other + hashlib.sha256(other).digest())
    with pytest.raises(SetError, match="of different trainings"):
        joined.load(tmp_path)


def test_program_joins_saved_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert.main(["show"]) == 2
    assert convert.main(["show", str(tmp_path)]) == 1
    (tmp_path / HEADER.name).mkdir()
    assert convert.main(["show", str(tmp_path)]) == 74
    said = capsys.readouterr().err
    assert "no set of saved parameters" in said and f"Is a directory: '{tmp_path / HEADER.name}'" in said
