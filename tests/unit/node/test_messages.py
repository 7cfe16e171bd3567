"""The page of messages, compared with all code that sends or takes one; mypy holds both to its keys."""

from __future__ import annotations

import ast
import subprocess
import sys
import typing
from collections.abc import Iterable
from pathlib import Path

import pslaunch
from pslaunch.node import messages

HOUSE = Path(str(pslaunch.__file__)).parent
SOURCES = [path for room in ("node", "run", "follow", "check") for path in (HOUSE / room).rglob("*.py")]
TREES = [ast.parse(path.read_text()) for path in SOURCES if path.name != "messages.py"]
NODES = [node for tree in TREES for node in ast.walk(tree)]
HANDLERS = ("order_", "on_")


def type_of(message: type) -> str:
    """Return the text that tells this message from others; "" where it is only a part of some."""
    return "".join(typing.get_args(typing.get_type_hints(message).get("type")))


PAGE = {name: type_of(m) for name, m in vars(messages).items() if isinstance(m, type) and type_of(m)}


def test_each_message_on_the_page_is_sent_and_each_that_is_sent_is_on_the_page() -> None:
    dicts = [node for node in NODES if isinstance(node, ast.Dict)]
    pairs = [pair for node in dicts for pair in zip(node.keys, node.values, strict=True)]
    sent = {
        value.value
        for key, value in pairs
        if isinstance(key, ast.Constant) and key.value == "type" and isinstance(value, ast.Constant)
    }
    assert sent == set(PAGE.values())


def test_each_message_on_the_page_is_handled_and_each_handler_has_its_message() -> None:
    named = {n.name for n in NODES if isinstance(n, ast.FunctionDef)}
    named |= {n.id for n in NODES if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    handled = {name.removeprefix(p) for name in named for p in HANDLERS if name.startswith(p)}
    handled -= {"signal", "message", "output", "data", "lost", "slow", "node"}  # others with such a name
    asked: set[str] = set()  # where an answer is waited for, or told apart
    for node in NODES:
        words: Iterable[ast.AST] = ()
        if isinstance(node, ast.Compare):
            words = ast.walk(node)
        elif isinstance(node, ast.Call):
            words = node.args
        elif isinstance(node, ast.Subscript):
            words = [node.slice]
        asked |= {n.value for n in words if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    types = set(PAGE.values())
    assert not handled - types
    assert not types - handled - asked


def test_names_of_messages_and_of_no_other_types_end_in_msg() -> None:
    named = {name for name, m in vars(messages).items() if isinstance(m, type) and name.endswith("Msg")}
    assert named == set(PAGE)


def test_each_message_is_of_one_side_at_least() -> None:
    unions = ("ToAgent", "OfCheck", "OfAgent", "OfObserver", "ToObserver")
    sides = {m.__name__ for name in unions for m in typing.get_args(getattr(messages, name))}
    assert sides == set(PAGE) - {"HelloMsg", "DialMsg"}


def test_nothing_imports_the_page_when_it_runs() -> None:
    wanted = "agent.run_agent agent.inspect head.leader dispatch.peers dispatch.from_launcher later.relay"
    names = ", ".join(f"pslaunch.node.{name}" for name in wanted.split())
    code = f"import sys, pslaunch.run.session, pslaunch.check.check_hosts, {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pslaunch.node.messages" not in done.stdout.split()
