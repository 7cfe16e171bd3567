"""Questions on a terminal: no echo, and cancelled by the end of the job."""

from __future__ import annotations

import contextlib
import os
import pty
import termios
import threading
from collections.abc import Iterator

import pytest

from pslaunch.backends.fabric.ssh.questions import Prompt


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Return both ends of a terminal: the user's, and ours."""
    fds = pty.openpty()
    yield fds
    for fd in fds:
        os.close(fd)


def echoes(fd: int) -> bool:
    return bool(termios.tcgetattr(fd)[3] & termios.ECHO)


@contextlib.contextmanager
def asking(prompt: Prompt, user: int) -> Iterator[list[str]]:
    """Ask in a thread, whose answer is there at the end."""
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(prompt.ask("word? ")))
    thread.start()
    assert os.read(user, 100) == b"word? "
    yield answers
    thread.join()


@pytest.mark.parametrize(("typed", "answer"), [("geheim ü\n", "geheim ü"), ("\x04", "")])
def test_an_answer_is_taken_without_an_echo(terminal: tuple[int, int], typed: str, answer: str) -> None:
    user, ours = terminal
    with asking(Prompt(os.ttyname(ours)), user) as answers:
        assert not echoes(ours)
        os.write(user, typed.encode())
    assert answers == [answer] and os.read(user, 100).strip() == b"" and echoes(ours)


def test_the_end_of_the_job_cancels_a_question(terminal: tuple[int, int]) -> None:
    user, ours = terminal
    prompt = Prompt(os.ttyname(ours))
    with asking(prompt, user) as answers:
        prompt.give_up()
    assert answers == [""] and prompt.ask("again? ") == "" and echoes(ours)


def test_a_second_question_waits_for_the_first_answer(terminal: tuple[int, int]) -> None:
    user, ours = terminal
    prompt, answers = Prompt(os.ttyname(ours)), dict[str, str]()

    def ask(question: str) -> None:
        answers[question] = prompt.ask(question)

    threads = [threading.Thread(target=ask, args=(f"{word}? ",)) for word in ("key", "host")]
    for thread in threads:
        thread.start()
    for _ in threads:
        question = ""
        while not question.endswith("? "):  # the line's end of the one before comes by itself
            question += os.read(user, 100).decode().lstrip()
        assert question in ("key? ", "host? ") and not echoes(ours)
        os.write(user, f"of {question}\n".encode())
    for thread in threads:
        thread.join()
    assert answers == {"key? ": "of key? ", "host? ": "of host? "} and echoes(ours)
