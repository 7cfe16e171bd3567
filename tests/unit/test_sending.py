"""How far a dispatch is, in words and in the views."""

from __future__ import annotations

import io

import pytest

from pslaunch.sending import Sending, percent, show_bytes
from pslaunch.view import PlainView


def event(node: int | None, received: int, of: int, time: float = 0.0, **more: object) -> dict[str, object]:
    return {"event": "dispatch", "node": node, "state": "sending", "files": 1, "received": received,
            "bytes": of, "time": time, **more}  # fmt: skip


def test_all_nodes_together() -> None:
    sending = Sending()
    assert sending.over
    sending.note(event(1, 0, 4_000_000, 10.0))
    sending.note(event(2, 500_000, 4_000_000, 11.0))
    sending.note(event(1, 1_500_000, 4_000_000, 12.0))
    assert sending.text() == "25 % of 8.0 MB to 2 nodes, 1.0 MB/s"
    sending.note(event(None, 0, 8_000_000))
    assert sending.over


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
     (3_400_000_000, "3.4 GB"), (10**16, "10000.0 TB")],
)  # fmt: skip
def test_sizes(n: int, text: str) -> None:
    assert show_bytes(n) == text


def test_never_all_before_the_end() -> None:
    assert percent(999_999, 1_000_000) == "99 %" and percent(0, 0) == "100 %"


def test_plain_lines_now_and_then_and_at_the_end() -> None:
    out, now = io.StringIO(), [0.0]
    view = PlainView(out, lambda: now[0])
    for s in range(12):
        now[0] = float(s)
        view.event(event(1, s * 1_000_000, 20_000_000, s))
    view.event(event(None, 0, 20_000_000, 12.0, state="done", nodes=1, elapsed_s=12.0))
    assert out.getvalue().splitlines() == [
        "pslaunch | sending: 50 % of 20.0 MB to 1 node, 1.0 MB/s",
        "pslaunch | sent 1 file, 20.0 MB, that 1 node lacked, in 12.0 s",
    ]
