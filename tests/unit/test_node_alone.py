"""Node code travels alone: standard library only, whatever is installed where it lands."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from pslaunch.app import SHARED, blank, files, narrow, untyped, zipapp
from support.node_app import greet

MAX_ZIPAPP_BYTES = 60 * 1024  # in base64 it must fit into one argument of 128 KiB


def names(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module))
    return found


@pytest.mark.parametrize("path", files().values(), ids=files())
def test_imports_only_the_standard_library_and_itself(path: Path) -> None:
    for name in names(path):
        runtime = ("pslaunch.runtime", *(f"pslaunch.runtime.{shared}" for shared in SHARED))
        ours = name in ("pslaunch", *runtime) or name.startswith("pslaunch.node")
        assert ours or name.partition(".")[0] in sys.stdlib_module_names, name


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """The zipapp, as a file."""
    (tmp_path / "app.pyz").write_bytes(zipapp())
    return tmp_path / "app.pyz"


def test_the_zipapp_is_small_and_its_keeper_greets(app: Path) -> None:
    assert app.stat().st_size <= MAX_ZIPAPP_BYTES
    argv = [sys.executable, "-I", "-S", str(app), "keeper", "5", "1"]
    greeting, said = greet(argv)
    assert b'"type":"hello"' in greeting
    assert b"the head is gone" in said


class Untyped(ast.NodeTransformer):
    """Drops the annotations of functions, and of what is assigned in them."""

    depth = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        node.returns = None
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if not self.depth or node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def program(source: str) -> list[tuple[str, int, str]]:
    """Every node of its syntax tree with its line; strings that are statements by themselves are empty."""
    tree = Untyped().visit(ast.parse(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value.value = ""
    found = [node for node in ast.walk(tree) if hasattr(node, "lineno")]
    return [(type(node).__name__, node.lineno, ast.dump(node)) for node in found]


@pytest.mark.parametrize("path", files().values(), ids=files())
def test_what_travels_is_the_same_program_line_by_line(path: Path) -> None:
    source = path.read_text()
    assert program(narrow(untyped(blank(source)))) == program(source)


def test_comments_and_docstrings_are_blanked_and_nothing_else() -> None:
    source = (
        '"""Of the module,\n\nlong."""\nx = """not\n# this"""  # but this\n'
        'def f():\n    """é: its only one."""\n\n    # after it\nclass A:  # here\n    "one" "two"; y = 1\n'
        "z = [\n    # in it\n    '#',\n]\n"
    )
    assert blank(source) == (
        '""\n\n\nx = """not\n# this"""\n'
        'def f():\n    ""\n\n\nclass A:\n    "" "two"; y = 1\n'
        "z = [\n\n    '#',\n]\n"
    )


def test_annotations_of_functions_are_blanked_and_no_others() -> None:
    source = (
        "class A:\n    x: int = 1\n"
        "    def f(self, é: str = 'a: b', *rest: int, **more: dict[str, int]) -> None:\n"
        "        self.y: int = 2; z: str = 'x'\n        a: int\n        class B:\n            c: int = 3\n"
        "def g(\n    a: int,\n    b: tuple[\n        int],\n) -> str: return 'y: z -> a'\nv: int = 4\n"
    )
    assert untyped(source) == (
        "class A:\n    x: int = 1\n    def f(self, é = 'a: b', *rest, **more):\n"
        "        self.y = 2; z = 'x'\n        a: int\n        class B:\n            c: int = 3\n"
        "def g(\n    a,\n    b: tuple[\n        int],\n): return 'y: z -> a'\nv: int = 4\n"
    )


def test_one_space_indents_and_strings_keep_theirs() -> None:
    source = (
        "if x:\n    y = [\n        1,\n    ]\n    if y:\n"
        "        z = '''a\n    b\n        c'''; v = 'd\\\n    e'\n        w = 2\n"
    )
    assert narrow(source) == (
        "if x:\n y = [\n  1,\n ]\n if y:\n  z = '''a\n    b\n        c'''; v = 'd\\\n    e'\n  w = 2\n"
    )


def test_it_loads_no_numpy_and_none_of_the_launcher(app: Path) -> None:
    code = "import pslaunch.node.entry, pslaunch.node.head, sys; print(*sorted(sys.modules))"
    code = f"import sys; sys.path.insert(0, {str(app)!r}); {code}"
    argv = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {
        "numpy",
        "typer",
        "rich",
        "pslaunch.cli",
        "pslaunch.spec",
        "asyncio",
        "tempfile",
        "logging",
    }


# Says what the modules came from, and where a traceback points.
FROM = """
import sys
sys.path.insert(0, sys.argv[1])
{first}
import pslaunch.node, pslaunch.node.manifest, traceback
source = pslaunch.node.manifest.__spec__.loader
compiled = bool(source.codes and not source.known), pslaunch.__file__.endswith(".pyc")
print({{(True, True): "compiled", (False, False): "text"}}[compiled], pslaunch.node.__path__ is not None)
try:
    pslaunch.node.manifest.digest(None)
except TypeError:
    print(traceback.format_exc())
"""
ANOTHER_PYTHON = "import _frozen_importlib_external as e; e.MAGIC_NUMBER = b'none'"


@pytest.mark.parametrize(("first", "kind"), [("", "compiled"), (ANOTHER_PYTHON, "text")])
def test_a_python_like_ours_need_not_compile_it(tmp_path: Path, first: str, kind: str) -> None:
    (tmp_path / "app.pyz").write_bytes(zipapp(small=False))
    argv = [sys.executable, "-I", "-S", "-c", FROM.format(first=first), str(tmp_path / "app.pyz")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{kind} True\n")
    assert f'File "{tmp_path}/app.pyz/pslaunch/node/manifest.py", line ' in done.stdout
    assert "\n    return blake2b(data" in done.stdout
