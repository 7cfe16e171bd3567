"""Several nodes are asked at the same time, and their answers come in order."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from pslaunch.errors import FileError, HostError
from pslaunch.run.answers import AHEAD, QUESTIONS_AT_ONCE, Question, ask_all

SOON_S = 45.0


def give(*pieces: bytes) -> Iterator[bytes]:
    yield from pieces


def test_all_nodes_are_asked_before_any_has_answered() -> None:
    meeting = threading.Barrier(QUESTIONS_AT_ONCE)

    def ask(node: int) -> Iterator[bytes]:
        meeting.wait(SOON_S)
        yield str(node).encode()

    with ask_all([Question(n, functools.partial(ask, n)) for n in range(QUESTIONS_AT_ONCE)]) as answers:
        assert [b"".join(a) for a in answers] == [str(n).encode() for n in range(QUESTIONS_AT_ONCE)]


def test_a_node_answers_one_question_at_a_time_and_is_left_once_silent() -> None:
    asked: list[int] = []

    def ask(number: int) -> Iterator[bytes]:
        asked.append(number)
        if number == 0:
            raise FileError("no such file")
        if number == 1:
            raise HostError("node1", "read", "no answer")
        yield b"never"

    with ask_all([Question("node1", functools.partial(ask, n)) for n in range(4)]) as answers:
        with pytest.raises(FileError):
            b"".join(answers[0])
        for answer in answers[1:]:
            with pytest.raises(HostError, match="node1: read failed: no answer"):
                b"".join(answer)
    assert asked == [0, 1]


def test_answers_longer_than_the_memory_for_them_are_complete_in_order() -> None:
    pieces = [bytes([n % 256]) * 100 for n in range(20 * AHEAD)]
    questions = [Question(n % 5, lambda: give(*pieces)) for n in range(3 * QUESTIONS_AT_ONCE)]
    with ask_all(questions) as answers:
        assert all(list(answer) == pieces for answer in answers)


def test_closed_answers_do_not_hold_up_the_others() -> None:
    much = [b"x"] * (4 * AHEAD)
    with ask_all([Question(n, lambda: give(*much)) for n in range(3 * QUESTIONS_AT_ONCE)]) as answers:
        for answer in answers:
            with closing(answer):
                assert next(answer) == b"x"


def test_early_end_ends_all_threads() -> None:
    before = {*threading.enumerate()}
    over = threading.Event()

    def ask() -> Iterator[bytes]:
        try:
            while True:
                yield b"x"
        finally:
            over.set()

    threads: set[threading.Thread] = set()
    with pytest.raises(BrokenPipeError), ask_all([Question(n, ask) for n in range(2)]) as answers:
        next(answers[1])
        threads |= {*threading.enumerate()} - before
        raise BrokenPipeError
    for thread in threads:
        thread.join(SOON_S)
        assert not thread.is_alive()
    assert over.wait(SOON_S)
