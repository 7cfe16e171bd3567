"""Results from nodes are written only below the given folder."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pslaunch.backends.local.backend import LocalBackend
from pslaunch.errors import FileError
from pslaunch.node.job import Node
from pslaunch.node.later.relay import NOTES, read_pieces
from pslaunch.run.fetch import Fetched, describe_log, describe_results, fetch_results, unpack

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"", **fields: object) -> Entry:
    info = tarfile.TarInfo(name)
    for key, value in {"size": len(data), **fields}.items():
        setattr(info, key, value)
    return info, data


def stream(*entries: Entry) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def fetched(pieces: Iterable[bytes], folder: Path) -> Fetched:
    found = Fetched([], [], {})
    unpack(iter(pieces), folder, found)
    return found


def test_files_come_whole_in_pieces_of_any_size(tmp_path: Path) -> None:
    data = bytes(range(256)) * 300
    folder = entry("pass-0", type=tarfile.DIRTYPE, mode=0o755)
    whole = stream(folder, entry("pass-0/w", data, mode=0o640, mtime=12))
    for size in (1000, 512, len(whole)):
        found = fetched([whole[i : i + size] for i in range(0, len(whole), size)], tmp_path / "out")
        path = tmp_path / "out/pass-0/w"
        assert found == ([str(path.parent), str(path)], [], {})
        assert path.read_bytes() == data
        assert path.stat().st_mtime == 12 and path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/etc/pslaunch-was-here"])
def test_path_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileError, match="outside"):
        fetched([stream(entry(name, b"x"))], tmp_path / "in")
    assert not (tmp_path / "out").exists() and not Path("/etc/pslaunch-was-here").exists()


def test_only_links_that_stay_in_the_folder_are_made(tmp_path: Path) -> None:
    links = stream(
        entry("bad", type=tarfile.SYMTYPE, linkname="/etc"),
        entry("good", type=tarfile.SYMTYPE, linkname="file"),
        entry("file", b"1"),
        entry("device", type=tarfile.CHRTYPE),
        entry("pipe", type=tarfile.FIFOTYPE),
    )
    found = fetched([links], tmp_path)
    assert found.brought == [f"{tmp_path}/{name}" for name in ("good", "file")]
    assert found.left_out == [
        f"{tmp_path}/bad is a link that leads out, to /etc",
        *(f"{tmp_path}/{name} is not a file, folder or link" for name in ("device", "pipe")),
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "good"]
    assert (tmp_path / "good").read_bytes() == b"1"


def test_link_is_left_out_if_another_link_would_lead_it_out(tmp_path: Path) -> None:
    """`way` is dangling without `here`, and leads out once `here` is a link to its own folder."""
    links = [
        entry("way", type=tarfile.SYMTYPE, linkname="here/.."),
        entry("here", type=tarfile.SYMTYPE, linkname="."),
    ]
    for steps in ([stream(*links)], [stream(link) for link in links]):
        for step in steps:
            fetched([step], tmp_path / "in")
        for path in (tmp_path / "in").iterdir():
            assert path.resolve().is_relative_to(tmp_path / "in")


def sparse(name: str) -> bytes:
    """Return a sparse file in GNU's old form, which claims 2 GB in 512 bytes."""
    info = tarfile.TarInfo(name)
    info.type, info.size = tarfile.GNUTYPE_SPARSE, 0
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[483:495] = b"%011o\0" % (2 << 30)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    return bytes(block) + bytes(1024)


def test_sparse_file_is_left_out(tmp_path: Path) -> None:
    found = fetched([sparse("huge")], tmp_path / "out")
    assert found == ([], [f"{tmp_path}/out/huge is not a file, folder or link"], {})


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE])
@pytest.mark.parametrize("before", [b"", tarfile.DIRTYPE, tarfile.FIFOTYPE, b"?"])
def test_endless_name_is_refused_before_it_fills_memory(tmp_path: Path, kind: bytes, before: bytes) -> None:
    """An entry before it may claim a size of its own."""
    info, claims = tarfile.TarInfo("long"), tarfile.TarInfo("claims")
    info.type, info.size = kind, 1 << 30
    claims.type, claims.size = before, 1 << 32
    come = 0

    def pieces() -> Iterator[bytes]:
        nonlocal come
        yield (claims.tobuf(tarfile.GNU_FORMAT) if before else b"") + info.tobuf()
        for _ in range(1 << 14):
            come += 1 << 16
            yield b"x" * (1 << 16)

    with pytest.raises(FileError, match="header of an entry is too long"):
        fetched(pieces(), tmp_path / "out")
    assert come < 1 << 20


@pytest.mark.parametrize("kind", [b"?", tarfile.REGTYPE, NOTES])
def test_huge_claimed_size_ends_with_the_data(tmp_path: Path, kind: bytes) -> None:
    info = tarfile.TarInfo("huge")
    info.type, info.size = kind, 1 << 60
    with pytest.raises(FileError, match="not a valid tar stream"):
        fetched([info.tobuf(tarfile.GNU_FORMAT) + bytes(1024)], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_comes_without_its_folder(tmp_path: Path) -> None:
    found = fetched([stream(entry("old/older/new", b"1"))], tmp_path / "out")
    assert found == ([f"{tmp_path}/out/old/older/new"], [], {})
    assert (tmp_path / "out/old/older/new").read_bytes() == b"1"


def test_notes_of_a_node_are_reported_and_not_written(tmp_path: Path) -> None:
    text = b"a, b: of an earlier job, left in /ws/output\ns: no file, folder or link\nc: cut\nand\nmore"
    notes = [entry("notes", text, type=NOTES), entry("notes", b"of many", type=NOTES)]
    found = fetched([stream(*notes, entry("file", b"1"), notes[1])], tmp_path)
    assert found.left_out == text.decode().split("\n")[:3]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_notes_with_the_longest_names_are_reported_whole(tmp_path: Path) -> None:
    lines = [", ".join(n * 4000 for n in "abc") + f": {what} {'p' * 4000}" for what in ("1", "2", "3")]
    found = fetched([stream(entry("notes", "\n".join(lines).encode(), type=NOTES))], tmp_path)
    assert found.left_out == lines


def test_existing_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in/way").symlink_to(tmp_path / "out")
    with pytest.raises(FileError, match="outside"):
        fetched([stream(entry("way/file", b"x"))], tmp_path / "in")
    assert not list((tmp_path / "out").iterdir())


def test_full_disk_is_named_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda _path, _mode: os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb"))
    text = f"can't write what was fetched: {tmp_path}: No space left on device; free some space there"
    with pytest.raises(FileError, match=re.escape(text)):
        fetched([stream(entry("file", b"x" * 100_000))], tmp_path)


def test_invalid_or_truncated_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not a valid tar stream"):
        fetched([b"x" * 2000], tmp_path)
    with pytest.raises(FileError, match="not a valid tar stream"):
        fetched([stream(entry("file", b"x" * 5000))[:3000]], tmp_path)
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize(
    "fields", [{"mtime": "1e300"}, {"mtime": "nan"}, {"path": "a\0b"}], ids=["time", "no time", "name"]
)
def test_impossible_name_or_time_is_an_error(tmp_path: Path, fields: dict[str, str]) -> None:
    with pytest.raises(FileError, match="not a valid tar stream"):
        fetched([stream(entry("a", b"x", pax_headers=fields))], tmp_path / "out")


def test_circular_links_can_be_fetched_again(tmp_path: Path) -> None:
    circle = stream(*(entry(a, type=tarfile.SYMTYPE, linkname=b) for a, b in ("ab", "ba", "cc")))
    for _ in range(2):
        fetched([circle], tmp_path / "out")
    assert (tmp_path / "out/c").readlink() == Path("c")
    with pytest.raises(FileError):
        fetched([stream(entry("a/x", b"x"))], tmp_path / "out")


def test_file_with_the_longest_name_comes_and_a_truncated_one_leaves_nothing(tmp_path: Path) -> None:
    name = "n" * 255
    whole = stream(entry(name, b"x" * 5000))
    with pytest.raises(FileError):
        fetched([whole[:3000]], tmp_path)
    assert list(tmp_path.iterdir()) == []
    fetched([whole], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_all_names_of_a_file_come_with_its_content(tmp_path: Path) -> None:
    (tmp_path / "output/pass-0").mkdir(parents=True)
    (tmp_path / "output/pass-0/w").write_bytes(b"values")
    for second in ("last", "pass-0/x"):
        (tmp_path / "output" / second).hardlink_to(tmp_path / "output/pass-0/w")
    command = [sys.executable, "-P", "-m", "pslaunch.node", "pack", str(tmp_path / "output")]
    packed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    found = fetched(read_pieces(io.BytesIO(packed).read), tmp_path / "here")
    assert found.left_out == []
    files = [path for path in map(Path, found.brought) if path.is_file()]
    assert len(files) == 3 and all(path.read_bytes() == b"values" for path in files)


def test_failure_comes_with_the_folder_and_its_node(tmp_path: Path) -> None:
    nodes = [Node(i, f"n{i}", "").place_in(f"{tmp_path}/ws{i}") for i in range(2)]
    Path(nodes[0].log_dir).mkdir(parents=True)
    found = fetch_results(LocalBackend(), "demo-1", nodes, None, tmp_path / "got")
    assert [*found.failed] == [f"{nodes[1].log_dir} on n1"]


def test_only_files_that_came_are_named(tmp_path: Path) -> None:
    nodes = [Node(i, f"demo-1-{i}", "").place_in(f"{tmp_path}/ws{i}") for i in range(2)]
    for node in nodes:
        Path(node.log_dir).mkdir(parents=True)
    (Path(nodes[0].output_dir) / "empty").mkdir(parents=True)
    output, logs = tmp_path / "output", tmp_path / "log"

    def fetch() -> Fetched:
        return fetch_results(LocalBackend(), "demo-1", nodes, output, logs)

    failure = {"what": "trainer/1", "node": 1, "log": f"{nodes[1].log_dir}/train.log"}
    logs.joinpath("1").mkdir(parents=True)
    logs.joinpath("1/train.log").touch()  # of an earlier job
    none = ["there are no results: output/ has nothing new", "there are no logs"]
    assert describe_results(fetch(), output, logs) == none
    assert describe_log(fetch(), failure, "demo-1", nodes, logs) == []
    (Path(nodes[0].output_dir) / "model").touch()
    (Path(nodes[1].log_dir) / "train.log").touch()
    found = fetch()
    assert describe_results(found, output, logs) == [f"results are in {output}", f"logs are in {logs}"]
    assert describe_results(found, None, logs) == [f"logs are in {logs}"]
    said = describe_log(found, failure, "demo-1", nodes, logs)
    assert said == [f"the log of trainer/1 is {logs}/1/train.log"]
    assert describe_log(found, {**failure, "log": ""}, "demo-1", nodes, logs) == []
