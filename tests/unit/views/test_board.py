"""What TensorBoard reads of a job."""

from __future__ import annotations

import io
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pslaunch.views.board import Board
from pslaunch.views.view import JsonView, PlainView

pytest.importorskip("tensorboardX")


def progress(process: str, time: float, **more: Any) -> dict[str, Any]:
    return {"event": "progress", "process": process, "time": time, **more}


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the numbers in an event file by their names, with their steps."""
    from tensorboardX.proto import event_pb2
    from tensorboardX.record_writer import masked_crc32c

    (file,) = folder.iterdir()
    data, found = file.read_bytes(), defaultdict(list)
    while data:
        size = int.from_bytes(data[:8], "little")
        assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + size])
        data = data[16 + size :]
        for value in event.summary.value:
            found[value.tag].append((event.step, value.simple_value))
    return found


def test_numbers_are_written_by_process_and_step(tmp_path: Path) -> None:
    out = io.StringIO()
    board = Board(JsonView(out), tmp_path / "board")
    usage = {"cpu_percent": 50.0, "memory_bytes": 4096, "gpu_percent": 93.0}
    events = [
        progress("trainer/0", 100.0, **{"pass": 0, "metric.auc": 0.5}, batch=9, cost=4.0),
        progress("trainer/0", 103.0, **{"pass": 1}, batch=0, cost=2.0, samples_per_s=8.0, **usage),
        progress("../x", 105.0, **usage),
        progress("trainer/0", 106.0, **{"pass": 2**60}, batch=0, batches=2**60, dropped=3),
    ]
    for e in events:
        board.show_event(e)
    board.close()
    assert len(out.getvalue().splitlines()) == len(events)
    assert sorted(path.name for path in (tmp_path / "board").iterdir()) == ["---x", "trainer-0"]
    last = 2**63 - 1
    assert read(tmp_path / "board/trainer-0") == {
        "metric.auc": [(9, 0.5)], "cost": [(9, 4.0), (10, 2.0)], "samples_per_s": [(10, 8.0)],
        "cpu_percent": [(3, 50.0)], "memory_bytes": [(3, 4096.0)], "gpu_percent": [(3, 93.0)],
        "dropped": [(last, 3.0)],
    }  # fmt: skip
    assert read(tmp_path / "board/---x")["memory_bytes"] == [(5, 4096.0)]


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = io.StringIO()
    board = Board(PlainView(out, lambda: 0.0), tmp_path / "file")
    for _ in range(2):
        board.show_event(progress("trainer/0", 100.0, batch=1, cost=1.0))
    for _ in range(2):
        board.show_event({"event": "line", "process": "trainer/0", "text": "goes on"})
    board.close()
    assert out.getvalue().count("can't be written: Not a directory") == 1
    assert out.getvalue().count("goes on") == 2
