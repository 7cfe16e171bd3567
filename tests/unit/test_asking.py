"""Questions to the user: what a terminal gives, also where its user gives nothing."""

from __future__ import annotations

import os
import pty
import sys

import pytest

ASK = (
    "from pslaunch.backends.fabric import _asker; ask = _asker(); print('got', ask('Passphrase? ').encode())"
)


@pytest.mark.parametrize(("typed", "got"), [(b"secret\n", b"got b'secret'"), (b"\x04", b"got b''")])
def test_an_answer_and_none(typed: bytes, got: bytes) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-P", "-c", ASK])
    said = b""
    try:
        while b"Passphrase? " not in said:
            said += os.read(terminal, 1024)
        os.write(terminal, typed)
        while got not in said and b"Error" not in said:
            said += os.read(terminal, 1024)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert got in said and b"secret" not in said.partition(b"got")[0]
