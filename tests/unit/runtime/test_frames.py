"""The frame header as Python sees it, and docs/protocol.md against the constants of the code."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.runtime import _core
from pslaunch.runtime.client import blocks, handshake
from pslaunch.runtime.engine.kernel_numbers import Schedule
from pslaunch.runtime.pserver import threads as shards
from pslaunch.runtime.shared import places
from support import reference

pytestmark = pytest.mark.asan

DOC = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text()
CONSTANTS = _core.get_protocol()
OPS = {name.removeprefix("op "): number for name, number in CONSTANTS.items() if name.startswith("op ")}
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@st.composite
def headers(draw: st.DrawFn) -> dict[str, Any]:
    """Headers that a decoder must take."""
    return {
        "op": OPS["PUSH"],
        "epoch": draw(U32),
        "trainer": draw(st.integers(0, CONSTANTS["PS_MAX_TRAINERS"] - 1)),
        "samples": draw(U32),
        "factor": draw(st.floats(0, 2, width=32)),
        "sequence": draw(U64),
        "object": draw(st.integers(0, CONSTANTS["PS_MAX_OBJECTS"] - 1)),
        "flags": draw(st.integers(0, CONSTANTS["PS_WANT"])),
        "version": draw(U64),
        "length": draw(st.integers(0, CONSTANTS["PS_MAX_DENSE_BYTES"])),
        "count": draw(U32),
    }


@given(headers())
def test_frames_are_decoded_as_they_were_encoded(h: dict[str, Any]) -> None:
    assert _core.decode_header(_core.encode_header(**h)) == h


@given(headers(), st.integers(0, 63))
def test_decoder_waits_after_a_prefix(h: dict[str, Any], n: int) -> None:
    assert _core.decode_header(_core.encode_header(**h)[:n]) is None


@given(headers(), st.integers(0, 511))
def test_a_flipped_bit_is_an_error(h: dict[str, Any], bit: int) -> None:
    raw = bytearray(_core.encode_header(**h))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError):
        _core.decode_header(bytes(raw))


@given(st.binary(min_size=64, max_size=80))
def test_other_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        _core.decode_header(data)


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
    raw = _core.encode_header(
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
    expected = {n: k for n, k in CONSTANTS.items() if n.startswith("PS_MAX")}
    expected |= {"MAX_BODY_BYTES": handshake.MAX_BODY_BYTES, "MAX_UNPROVEN": places.MAX_UNPROVEN}
    expected["TIMEOUT_S"] = int(handshake.TIMEOUT_S)
    expected["BLOCK_FLOATS"] = blocks.BLOCK_FLOATS
    assert documented == expected


def test_records_between_threads_have_one_size() -> None:
    assert shards.EVENT.size == CONSTANTS["event bytes"]
    assert shards.MAIL.size == CONSTANTS["mail bytes"]
    assert CONSTANTS["PS_MAIL_SAVE"] == shards.SAVE


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"op": OPS["PULL"], "samples": 1}, "PULL of 1 samples"),
        ({"op": OPS["DONE"], "factor": 1.0}, "DONE with 1 times the learning rate"),
        ({"op": OPS["PUSH"], "factor": -0.5}, "PUSH with -0.5 times the learning rate"),
        ({"op": OPS["PUSH_ROWS"], "factor": float("inf")}, "PUSH_ROWS with inf times the learning rate"),
    ],
)
def test_only_a_push_has_samples_and_a_factor(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _core.decode_header(_core.encode_header(**fields, sequence=1))


@pytest.mark.parametrize(("samples", "factor"), [(2**32, 1.0), (1, -1.0), (1, float("nan"))])
def test_client_refuses_a_batch_beyond_the_limits(samples: int, factor: float) -> None:
    client, values = _core.Client(1, 0, 0), np.zeros(4, np.float32)
    rule, whole = reference.Rule(method=0, lr=0.1).pack(), np.array([0, 0, 4], np.uint64)
    client.add_dense("w", 4, rule, Schedule().pack(), 0, 0, whole)
    with pytest.raises(ValueError, match=f"a push of {2**32} samples|a push with (-1|nan) times"):
        client.push(0, values, None, samples, factor)
