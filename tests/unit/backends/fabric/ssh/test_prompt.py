"""Questions on a terminal: no echo, and cancelled by the end of the job."""

from __future__ import annotations

import os
import pty
import termios
import threading
from collections.abc import Iterator

import pytest

from pslaunch.backends.fabric.ssh.prompt import Prompt


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return both ends of a terminal: the user's, and ours."""
    fds = pty.openpty()
    yield fds
    for fd in fds:
        os.close(fd)


def echoes(fd: int) -> bool:
    return bool(termios.tcgetattr(fd)[3] & termios.ECHO)


def test_an_answer_is_taken_without_an_echo(terminal: tuple[int, int]) -> None:
    user, ours = terminal
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(Prompt(os.ttyname(ours)).ask("word? ")))
    asking.start()
    assert os.read(user, 100) == b"word? " and not echoes(ours)
    os.write(user, "geheim ü\n".encode())
    asking.join()
    assert answers == ["geheim ü"] and os.read(user, 100).strip() == b"" and echoes(ours)


def test_the_end_of_the_job_cancels_a_question(terminal: tuple[int, int]) -> None:
    user, ours = terminal
    prompt, answers = Prompt(os.ttyname(ours)), list[str]()
    asking = threading.Thread(target=lambda: answers.append(prompt.ask("word? ")))
    asking.start()
    assert os.read(user, 100) == b"word? "
    prompt.give_up()
    asking.join()
    assert answers == [""] and prompt.ask("again? ") == "" and echoes(ours)


def test_ctrl_d_is_no_answer(terminal: tuple[int, int]) -> None:
    user, ours = terminal
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(Prompt(os.ttyname(ours)).ask("word? ")))
    asking.start()
    assert os.read(user, 100) == b"word? "
    os.write(user, b"\x04")
    asking.join()
    assert answers == [""] and echoes(ours)


def test_a_second_question_waits_for_the_first_answer(terminal: tuple[int, int]) -> None:
    user, ours = terminal
    prompt, answers = Prompt(os.ttyname(ours)), dict[str, str]()

    def ask(question: str) -> None:
        answers[question] = prompt.ask(question)

    asking = [threading.Thread(target=ask, args=(f"{word}? ",)) for word in ("key", "host")]
    for thread in asking:
        thread.start()
    for _ in asking:
        question = ""
        while not question.endswith("? "):  # the line's end of the one before comes by itself
            question += os.read(user, 100).decode().lstrip()
        assert question in ("key? ", "host? ") and not echoes(ours)
        os.write(user, f"of {question}\n".encode())
    for thread in asking:
        thread.join()
    assert answers == {"key? ": "of key? ", "host? ": "of host? "} and echoes(ours)
