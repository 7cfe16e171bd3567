"""Programs that write text of slots."""

from __future__ import annotations

import io
from typing import Any

import pytest

from pslaunch.runtime.paddle2.fleet import data_generator as dg


class Words(dg.MultiSlotDataGenerator):
    """A line has words and a label; a line without any gives no sample."""

    def generate_sample(self, line: str | None) -> Any:
        def read() -> Any:
            *words, label = map(float, (line or "0.5 1").split())
            yield [("words", words), ("label", [int(label)])] if words else None

        return read


class Pairs(Words):
    """Twice the samples of each batch."""

    def generate_batch(self, samples: Any) -> Any:
        return lambda: [*samples, *samples]


class Texts(dg.MultiSlotStringDataGenerator):
    """Values are taken as they are."""

    def generate_sample(self, line: str) -> Any:
        return lambda: [zip(["words", "label"], [line.split(), ["1"]], strict=True)]


@pytest.mark.parametrize(
    ("kind", "lines", "written"),
    [
        (Words, "1 2 7\n7\n0.1 8\n", "2 1.0 2.0 1 7\n1 0.1 1 8\n"),
        (Pairs, "1 2\n3 4\n5 6\n", "1 1.0 1 2\n1 3.0 1 4\n" * 2 + "1 5.0 1 6\n" * 2),
        (Texts, "1926 08 17\n", "3 1926 08 17 1 1\n"),
    ],
)
def test_samples_are_written_as_text_of_slots(
    kind: type[Any],
    lines: str,
    written: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    generator = kind()
    generator.set_batch(2)
    generator.run_from_stdin()
    assert capsys.readouterr().out == written


def test_samples_from_memory_need_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Words().run_from_memory()
    assert capsys.readouterr().out == "1 0.5 1 1\n"


@pytest.mark.parametrize(
    ("samples", "error"),
    [
        ([[("a", [1])], [("b", [1])]], r"Given: a sample has the slots \['b'\], expected \['a'\]"),
        ([[("a", [])]], r"Given: slot a has \[\], expected one number or more"),
        ([[("a", ["1"])]], r"Given: slot a has \['1'\], expected one number or more"),
    ],
)
def test_samples_that_are_no_text_of_slots_are_named(samples: list[Any], error: str) -> None:
    class Given(dg.MultiSlotDataGenerator):
        def generate_sample(self, line: None) -> Any:
            return lambda: samples

    with pytest.raises(ValueError, match=error):
        Given().run_from_memory()
