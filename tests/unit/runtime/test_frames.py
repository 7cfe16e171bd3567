"""The frames of a client, and docs/protocol.md against the constants of the code."""

from __future__ import annotations

import re
import socket
import struct
from pathlib import Path

import numpy as np
import pytest

from pslaunch.runtime import _core
from pslaunch.runtime.engine.kernel_numbers import Schedule
from pslaunch.runtime.files import blocks
from pslaunch.runtime.pserver import pserver_options
from pslaunch.runtime.pserver import threads as shards
from pslaunch.runtime.shared import prove, strangers
from support import reference
from support.constants import CONSTANTS
from support.constants import OPERATIONS as OPS

pytestmark = pytest.mark.asan

DOC = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
FIELDS = (
    "magic version op epoch trainer samples factor sequence object flags object_version length count check"
)


def test_the_layout_is_the_documented_one() -> None:
    rows = re.findall(r"^\| (\d+) \| ([uf]\d+) \| `(\w+)`", DOC, re.MULTILINE)
    assert [name for _, _, name in rows] == FIELDS.split()
    at = 0
    for offset, kind, _ in rows:
        assert int(offset) == at
        at += int(kind[1:]) // 8
    assert at == CONSTANTS["PS_HEADER_BYTES"]
    raw = reference.encode_header(
        op=5,
        epoch=6,
        trainer=7,
        samples=8,
        factor=0.5,
        sequence=9,
        object=10,
        flags=2,
        version=12,
        length=13,
        count=14,
    )
    sizes = {"u16": "H", "u32": "I", "u64": "Q", "f32": "f"}
    found = struct.unpack("<" + "".join(sizes[kind] for _, kind, _ in rows), raw)
    own = 5, 6, 7, 8, 0.5, 9, 10, 2, 12, 13, 14
    assert found[:13] == (CONSTANTS["PS_MAGIC"], CONSTANTS["PS_VERSION"], *own)


def test_operations_are_the_documented_ones() -> None:
    assert {n: int(k) for k, n in re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", DOC, re.MULTILINE)} == OPS


def test_limits_are_the_documented_ones() -> None:
    documented = {
        n: int(k.replace(",", "")) for n, k in re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", DOC, re.MULTILINE)
    }
    own = {"PS_MAX_CREATE"}  # which follows from others
    expected = {n: CONSTANTS[n] for n in CONSTANTS.said if n.startswith("PS_MAX") and n not in own}
    expected |= {"MAX_BODY_BYTES": prove.MAX_BODY_BYTES, "MAX_UNPROVEN": strangers.MAX_UNPROVEN}
    expected["TIMEOUT_S"] = int(prove.TIMEOUT_S)
    expected["BLOCK_FLOATS"] = blocks.BLOCK_FLOATS
    assert documented == expected


def test_records_between_threads_have_one_size() -> None:
    assert shards.EVENT.size == _core.get_protocol()["event bytes"]
    assert shards.MAIL.size == _core.get_protocol()["mail bytes"]
    assert (CONSTANTS["PS_MAIL_SAVE"], CONSTANTS["PS_MAIL_CUT"]) == (shards.SAVE, shards.CUT_NOW)
    records = [CONSTANTS[f"PS_CUT_{name}"] for name in ("WHOLE", "LOST", "BEGINS", "LAST")]
    assert records == [shards.WHOLE, shards.LOST, shards.BEGINS, shards.LAST]
    assert CONSTANTS["PS_CUT_EXPORTS"] == pserver_options.EXPORTS


def test_frames_have_the_documented_layout() -> None:
    """A push of the real client; tests/c/test_frame.c has what a decoder refuses."""
    ours, theirs = socket.socketpair()
    client, values = _core.Client(1, 6, 7), np.zeros(4, np.float32)
    with ours:
        client.attach(0, theirs.detach())
        whole = np.array([0, 0, 4], np.uint64)
        client.add("w", 4, reference.Rule(method=0, lr=0.1).pack(), Schedule().pack(), 0, 0, whole)
        client.push(0, values, values.copy(), 8, 0.5)
        client.begin()
        assert client.progress() is None
        sent, size = ours.recv(1000), CONSTANTS["PS_HEADER_BYTES"]
    first = CONSTANTS["PS_CREATE_BYTES"] + len("w")
    create = {"op": OPS["CREATE"], "sequence": 1, "length": first}
    push = {"op": OPS["PUSH"], "sequence": 2, "length": 16, "samples": 8, "flags": CONSTANTS["PS_WANT"]}
    assert sent[:size] == reference.encode_header(epoch=6, trainer=7, **create)
    own = reference.encode_header(epoch=6, trainer=7, version=1, factor=0.5, **push)
    assert sent[size + first : 2 * size + first] == own
    client.close()


@pytest.mark.parametrize(("samples", "factor"), [(2**32, 1.0), (1, -1.0), (1, float("nan"))])
def test_client_refuses_a_batch_beyond_the_limits(samples: int, factor: float) -> None:
    client, values = _core.Client(1, 0, 0), np.zeros(4, np.float32)
    rule, whole = reference.Rule(method=0, lr=0.1).pack(), np.array([0, 0, 4], np.uint64)
    client.add("w", 4, rule, Schedule().pack(), 0, 0, whole)
    with pytest.raises(ValueError, match=f"a push of {2**32} samples|a push with (-1|nan) times"):
        client.push(0, values, None, samples, factor)
