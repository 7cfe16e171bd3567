"""Names, docstrings, comments, messages and pages are in plain words; tests lie beside their modules."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
QUESTIONS: Final = ("what", "whether", "where", "how", "which")
NO_VERBS: Final = ("again", "events", "in", "over", "part", "parts")
# Names that a protocol, a standard or PaddlePaddle fixes.
ALLOWED: Final = frozenset({"buffered", "distributed_optimizer", "in_dynamic_mode", "seed"})
VERBS_IN_ED: Final = ("feed", "need")
NOT_IN_TESTS: Final = {*QUESTIONS, "told", "tells"}
FOLDERS: Final = ("launcher", "runtime", "tests", "bench", "examples")
UNCHECKED: Final = (Path(__file__),)  # has the words themselves

PHRASES: Final = re.compile(r"\b(one that|of which|(?:is|are) (?:told|meant))\b", re.IGNORECASE)
# A sentence that begins with a question word: at the start, after the end of another, or in a list.
SENTENCES: Final = re.compile(r"(?:\A|[.!?:] +|^ *[-*] )(What|Whether|Where|How|Which)\b", re.MULTILINE)

Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def list_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def find_nodes(path: Path) -> Iterator[ast.Module | Named]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return (node for node in ast.walk(tree) if isinstance(node, ast.Module | Named))


def find_names(path: Path) -> list[str]:
    """Return each name in a file that begins with a question word or without a verb, with its line."""
    return [
        f"{path.name}:{node.lineno}: the name {node.name}"
        for node in find_nodes(path)
        if isinstance(node, Named) and node.name not in ALLOWED and not begins_well(node)
    ]


def begins_well(node: Named) -> bool:
    word = node.name.strip("_").lower().split("_")[0]
    if isinstance(node, ast.ClassDef) or any("property" in ast.unparse(d) for d in node.decorator_list):
        return word not in QUESTIONS
    past = word.endswith("ed") and word not in VERBS_IN_ED
    return not past and word not in (*QUESTIONS, *NO_VERBS)


def find_docstrings(path: Path) -> list[str]:
    """Return each docstring in a file that begins with a question word or a conjunction, with its line."""
    return [
        f"{path.name}:{node.body[0].lineno}: {words[0]}…"
        for node in find_nodes(path)
        if (words := re.findall(r"\w+", ast.get_docstring(node) or ""))
        and words[0].lower() in (*QUESTIONS, "as", "that", "when", "who", "why")
    ]


def list_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string and comment of a program, or of a page as a whole."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield 1, text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: ")


def find_phrases(path: Path) -> list[str]:
    """Return each phrase to avoid in the texts of a file, with its line."""
    return [
        f"{path.name}:{line + text[: found.start(1)].count(chr(10))}: {found[1]}"
        for line, text in list_texts(path)
        for expression in (PHRASES, SENTENCES)
        for found in expression.finditer(text)
    ]


@pytest.mark.parametrize(
    "path", list_files("launcher", "runtime"), ids=lambda path: str(path.relative_to(ROOT))
)
def test_names_begin_with_a_verb_or_a_noun(path: Path) -> None:
    assert find_names(path) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_without_a_question_word(folder: str) -> None:
    assert [found for path in list_files(folder) for found in find_docstrings(path)] == []


def test_names_of_tests_have_no_question_words() -> None:
    names = [
        f"{path.name}:{node.lineno}: {node.name}"
        for path in list_files("tests")
        for node in find_nodes(path)
        if isinstance(node, Named) and node.name.startswith("test_")
        and NOT_IN_TESTS & set(node.name.split("_"))
    ]  # fmt: skip
    assert names == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_texts_of_programs_are_plain(folder: str) -> None:
    paths = [path for path in list_files(folder) if path not in UNCHECKED]
    assert [found for path in paths for found in find_phrases(path)] == []


def test_pages_are_plain() -> None:
    folders = [ROOT / folder for folder in (*FOLDERS, "docs")]
    pages = [path for folder in folders for path in folder.rglob("*.md")]
    assert [found for page in (*pages, ROOT / "README.md") for found in find_phrases(page)] == []


def test_unit_tests_of_the_launcher_lie_beside_their_modules() -> None:
    units, lost = ROOT / "tests/unit", []
    for path in units.rglob("test_*.py"):
        folder = ROOT / "launcher" / path.parent.relative_to(units)
        modules = {module.stem for module in folder.glob("*.py")}
        words = path.stem.removeprefix("test_").split("_")
        beginnings = {"_".join(words[: n + 1]) for n in range(len(words))}
        if folder.is_dir() and path.parent != units and not modules & beginnings:
            lost.append(str(path.relative_to(ROOT)))
    assert lost == []


def test_words_to_avoid_are_found(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text(
        '"""How."""\ndef _what_it_is():\n    """Whether."""\ndef ended():\n    """Return one that ends."""\n'
        "x = 1  # Which is told\n"
    )
    assert find_names(source) == ["x.py:2: the name _what_it_is", "x.py:4: the name ended"]
    assert find_docstrings(source) == ["x.py:1: How…", "x.py:3: Whether…"]
    found = ["x.py:1: How", "x.py:3: Whether", "x.py:5: one that", "x.py:6: Which", "x.py:6: is told"]
    assert sorted(find_phrases(source)) == found
    page = tmp_path / "x.md"
    page.write_text("It is.\n\n* Where it is.\n")
    assert find_phrases(page) == ["x.md:3: Where"]
