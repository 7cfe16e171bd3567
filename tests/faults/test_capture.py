"""Somebody who sees every packet between the nodes of a job learns neither its secret nor a key."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from pslaunch.node.line import gate
from pslaunch.runtime.shared import prove
from support.capture import Capture, capturing
from support.jobs import LocalPlace, running, until_nothing_runs

PROGRAM = """
import os, shutil
shutil.copy(os.environ["PSLAUNCH_SECRET_FILE"], "kept")
"""
PASSED_ON_BYTES = 5 * 1024 * 1024  # from node to node


def find_nonces(capture: Capture, plane: prove.Plane, secret: bytes) -> list[bytes]:
    """Return both nonces of each connection whose sides have proved this secret to each other."""
    streams, found = capture.streams(), []
    for (source, target), asked in streams.items():
        answered = streams.get((target, source), b"")
        if not (asked.startswith(prove.MAGIC) and answered.startswith(prove.MAGIC)):
            continue
        first, second = prove.take_message(asked), prove.take_message(answered)
        if first and second and second[0] is prove.MessageKind.CHALLENGE:
            nonces = first[1][: prove.NONCE_BYTES] + second[1][: prove.NONCE_BYTES]
            if second[1][prove.NONCE_BYTES :] == plane.compute_mac(secret, plane.server.encode(), nonces):
                found.append(nonces)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees packets")
@pytest.mark.may_skip("only root sees packets")
@pytest.mark.parametrize("option", ["--head=node", "--detach"])
def test_neither_secret_nor_key_of_a_led_job_is_in_any_packet(workspace: Path, option: str) -> None:
    (workspace / "data").write_bytes(os.urandom(PASSED_ON_BYTES))
    with capturing() as capture:
        with running(LocalPlace(3, option), workspace, "--server_num=0", text=PROGRAM) as job:
            assert job.launcher.wait() == 0
        until_nothing_runs(60)
    secret = bytes.fromhex((workspace / "kept").read_text())
    nonces = find_nonces(capture, gate.PLANE, secret)
    assert len(nonces) >= 2  # of two agents that dialled; one of them may have dialled the other as well
    derived = [
        gate.PLANE.compute_mac(secret, b"key of " + who, n) for n in nonces for who in (b"head", b"agent")
    ]
    passed = b"\0".join(capture.streams().values())
    assert b'"prepare"' in passed
    ways = (bytes, lambda key: key.hex().encode(), lambda key: key.hex().upper().encode(), base64.b64encode)
    assert not [key.hex() for key in (secret, *derived) for show in ways if show(key) in passed]
