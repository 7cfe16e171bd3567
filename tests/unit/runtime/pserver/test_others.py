"""Who keeps copies of whose parts, and files that one pserver takes from another."""

import base64
import contextlib
import errno
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from pslaunch.runtime.client.control import Control
from pslaunch.runtime.client.dialer import Dialer
from pslaunch.runtime.files.manifest import hash_file
from pslaunch.runtime.files.objects import Content, SetError
from pslaunch.runtime.files.saving import File, Header
from pslaunch.runtime.pserver.others import Others, list_holders
from pslaunch.runtime.pserver.pserver_options import parse_options

HEADER = Header(
    job_id="demo-1", epoch=0, run=7, pserver=0, pservers=3, port=0, ports_num=1, ports_num_for_sparse=0,
    num_gradient_servers=1, finished=False,
)  # fmt: skip
ADDRESSES = [("a", 1), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(
    ("hosts", "owner", "copies", "holders"),
    [
        ("aabb", 0, 2, [2]),
        ("aabb", 1, 2, [2]),
        ("aabb", 3, 2, [0]),
        ("abab", 0, 3, [1, 2]),
        ("aabbcc", 1, 3, [2, 4]),
        ("aa", 0, 2, [1]),
        ("abc", 2, 9, [0, 1]),
        ("abc", 1, 1, []),
        ("a", 0, 2, []),
    ],
)
def test_the_next_pservers_on_other_nodes_keep_copies(
    hosts: str, owner: int, copies: int, holders: list[int]
) -> None:
    assert list_holders(hosts, owner, copies) == holders


@contextlib.contextmanager
def answering(monkeypatch: pytest.MonkeyPatch, *contents: bytes | None, reason: int = errno.ENOENT) -> Any:
    """Pservers 1, 2, ... have a file with this content, None: none, in pieces of 4 bytes."""
    asked: list[int] = []
    threads: list[threading.Thread] = []

    def serve(control: Control, content: bytes | None) -> None:
        with contextlib.suppress(ConnectionError):
            while question := control.receive(10.0):
                at = question["at"]
                if content is None:
                    control.send({"error": "it is not there", "errno": reason})
                else:
                    piece = base64.b64encode(content[at : at + 4]).decode()
                    control.send({"piece": piece, "bytes": len(content)})
        control.close()

    def open_control(_: Dialer, pserver: int) -> Control:
        ours, theirs = socket.socketpair()
        asked.append(pserver)
        threads.append(threading.Thread(target=serve, args=(Control(theirs), contents[pserver - 1])))
        threads[-1].start()
        return Control(ours)

    monkeypatch.setattr(Dialer, "open_control", open_control)
    yield asked
    for thread in threads:
        thread.join(10.0)


def make_part(folder: Path) -> tuple[Path, bytes]:
    with contextlib.closing(File(folder, "shard-00001-000.bin", b"a part of a set ")) as file:
        file.append(b"some more of it")
        file.finish()
    path = folder / "shard-00001-000.bin"
    return path, path.read_bytes()


def test_a_part_is_taken_from_the_first_that_has_it_and_verified(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, content = make_part(tmp_path)
    entry = hash_file(Content(path))
    others, to = Others(parse_options([], {}), HEADER, ADDRESSES), tmp_path / "here" / path.name
    with answering(monkeypatch, None, content) as asked:
        others.keep("cut", to, entry)
        assert asked == [1, 2]
        assert to.read_bytes() == content
        others.keep("cut", to, entry)  # it is there
        assert len(asked) == 2
        to.write_bytes(content[:-1] + b"?")
        others.keep("cut", to, entry)
        assert to.read_bytes() == content
        to.unlink()
    damaged = [content[:20] + b"?" + content[21:]] * 2
    with answering(monkeypatch, *damaged), pytest.raises(SetError, match="damaged on its way"):
        others.keep("cut", to, entry)


def test_what_nobody_has_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    others = Others(parse_options([], {}), HEADER, ADDRESSES)
    with answering(monkeypatch, None, None):
        others.fetch("cut", tmp_path / "here" / "manifest.json")
    assert not (tmp_path / "here").exists()


def test_a_pserver_that_can_not_read_its_file_is_no_pserver_without_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    others = Others(parse_options([], {}), HEADER, ADDRESSES)
    with (
        answering(monkeypatch, None, b"of another", reason=errno.EIO) as asked,
        pytest.raises(OSError, match=r"could not be taken from pserver 1: .*it is not there"),
    ):
        others.fetch("cut", tmp_path / "here" / "manifest.json")
    assert asked == [1]
