"""The launcher's output: never waits for its reader, reports its end, loses nothing."""

from __future__ import annotations

import os
import threading

import pytest

from pslaunch.views.outlet import FULL_CHARS, GATHERED_CHARS, Outlet


def test_a_slow_reader_gets_everything_and_blocks_no_writer() -> None:
    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb") as reader, open(write_fd, "w") as writer:  # noqa: PTH123 - descriptors
        outlet = Outlet(writer)
        text = "line é\n" * (FULL_CHARS // 4)
        for _ in range(2):
            outlet.write(text)
            outlet.flush()
        assert outlet.is_full
        found = [b""]
        thread = threading.Thread(target=lambda: found.append(reader.read(2 * len(text.encode()))))
        thread.start()
        outlet.drain()
        thread.join()
        assert found[-1].decode() == 2 * text and not outlet.is_full


def test_texts_arrive_with_a_flush_and_while_there_are_many() -> None:
    read_fd, write_fd = os.pipe()
    with open(read_fd, "rb") as reader, open(write_fd, "w") as writer:  # noqa: PTH123 - descriptors
        outlet = Outlet(writer)
        outlet.write("a" * GATHERED_CHARS)
        outlet.write("b")
        assert reader.read(GATHERED_CHARS) == b"a" * GATHERED_CHARS
        outlet.write("c")
        outlet.flush()
        assert reader.read(2) == b"bc"
        outlet.drain()


def test_a_reader_that_is_gone_is_an_error_of_a_later_write() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with open(write_fd, "w") as writer:  # noqa: PTH123 - a descriptor
        outlet = Outlet(writer)
        outlet.write("nobody reads this")
        outlet.drain()
        with pytest.raises(BrokenPipeError):
            outlet.write("nor this")
        with pytest.raises(BrokenPipeError):
            outlet.check()
        outlet.close()
        assert outlet.closed
