"""Answers of the programs in node/later/relay.py, as every backend reads them."""

from __future__ import annotations

import os
import select
from _blake2 import blake2b  # hashlib would load OpenSSL
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import FileError, HostError
from ..node.later import relay

SILENT_S = 30.0  # limit of a node's silence while it answers


def read_answer(
    fd: int, name: str, mode: str, find_words: Callable[[EOFError], str], start_s: float = 0.0
) -> Iterator[bytes]:
    """Yield the answer of a mode on a node; closes `fd`.

    find_words: returns the last words of a program that has not answered completely. start_s: more time, for
    its start. Raises FileError if the node answers, but lacks the file, otherwise HostError.
    """
    waiting, silent_s = select.poll(), SILENT_S + start_s
    waiting.register(fd, select.POLLIN)

    def read(size: int) -> bytes:
        if not waiting.poll(silent_s * 1000):
            raise TimeoutError(f"no answer for {silent_s:.0f} s; check that its machine and disks respond")
        return os.read(fd, size)

    with open(fd, "rb", buffering=0):  # closes it
        try:
            yield from relay.read_pieces(read)
        except TimeoutError as e:
            raise HostError(name, mode, str(e)) from None
        except EOFError as e:
            said, refusal = find_words(e), f"pslaunch {relay.MODES[mode][0]}: "
            if refusal in said:
                raise FileError(f"{name}: {said.partition(refusal)[2]}") from None
            raise HostError(name, mode, said or str(e)) from None


class Answered:
    """Bytes of an answer that were passed on, by their hash; a later answer has to begin with them."""

    def __init__(self) -> None:
        self._hash, self._size = blake2b(), 0

    def skip(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the rest of an answer. Raises FileError if it is another one."""
        again, left = blake2b(), self._size
        for piece in pieces:
            old, new = piece[:left], piece[left:]
            again.update(old)
            left -= len(old)
            if new:
                self._compare(again)
                for each in (again, self._hash):
                    each.update(new)
                self._size += len(new)
                yield new
        self._compare(again)

    def _compare(self, again: Any) -> None:
        if again.digest() != self._hash.digest():
            raise FileError("its files changed while they were fetched; fetch them again")
