"""What travels to a node: one small zipapp of everything that `pslaunch.node` needs.

Comments, docstrings and what only a type checker reads are blanked, so that it fits into one argument of a
command in base64, and so that the line numbers of a traceback from a node are those of the sources. The
modules are compressed as one text, a quarter less than each by itself; the package's own first lines know
how to import them from there.
"""

from __future__ import annotations

import ast
import functools
import io
import tokenize
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pslaunch
import pslaunch.node
import pslaunch.runtime

SHARED = ("env", "busyport", "nics", "prove")  # modules of the runtime that the launcher's nodes need too
MAIN = "import sys\nfrom pslaunch.node.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_MODULES = "pslaunch/modules"  # name, number of characters, and text of each
_IMPORTER = """
import sys as _sys
class _Modules:
    def __init__(self, data):
        self.texts, at, text = {}, 0, data.decode()
        while at < len(text):
            end = text.index("\\n", at)
            name, size = text[at:end].split()
            at = end + 1 + int(size)
            self.texts[name] = text[end + 1 : at]
    def find_spec(self, name, path=None, target=None):
        if self.get_source(name) is not None:
            whole = name + ".__init__" in self.texts
            return type(__spec__)(name, self, origin=self.place(name), is_package=whole)
    def place(self, name):
        return __loader__.archive + "/" + name.replace(".", "/") + ".py"
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        name = module.__name__
        exec(compile(self.get_source(name), self.place(name), "exec"), module.__dict__)
    def get_source(self, name):
        return self.texts.get(name + ".__init__", self.texts.get(name))
_sys.meta_path.insert(0, _Modules(__loader__.get_data(__loader__.archive + "/pslaunch/modules")))
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip file knows
Cut = tuple[int, int, int]  # in this line, from this byte to that one
_BEFORE_A_STATEMENT = {tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def files() -> dict[str, Path]:
    """What travels, by its path in the zipapp; the package may be installed anywhere."""
    node, runtime = (Path(str(p.__file__)).parent for p in (pslaunch.node, pslaunch.runtime))
    return {
        "pslaunch/__init__.py": Path(str(pslaunch.__file__)),
        **{f"pslaunch/node/{path.name}": path for path in sorted(node.glob("*.py"))},
        **{f"pslaunch/runtime/{name}.py": runtime / f"{name}.py" for name in ("__init__", *SHARED)},
    }


def blank(source: str) -> str:
    """The same program without comments and docstrings, every statement in its old line."""
    cuts: list[tuple[tokenize.TokenInfo, str]] = []
    before = tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            cuts.append((token, ""))
        elif token.type == tokenize.STRING and before in _BEFORE_A_STATEMENT:
            cuts.append((token, '""'))  # not nothing: it may be the only statement of its block
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token.type
    lines = source.splitlines(keepends=True)
    for token, instead in reversed(cuts):  # backwards: no cut moves what is cut after it
        (first, start), (last, end) = token.start, token.end
        kept = lines[first - 1][:start] + instead + lines[last - 1][end:]
        lines[first - 1 : last] = [kept.rstrip() + "\n", *["\n"] * (last - first)]
    return "".join(lines)


def untyped(source: str) -> str:
    """The same program without annotations of functions and in them, every statement in its old line.

    Those of fields stay, from which dataclasses and named tuples are made.
    """
    lines = source.encode().splitlines(keepends=True)
    for line, start, end in sorted(_annotations(ast.parse(source), lines), reverse=True):
        lines[line - 1] = lines[line - 1][:start] + lines[line - 1][end:]
    return b"".join(lines).decode()


def _annotations(tree: ast.AST, lines: list[bytes], *, in_function: bool = False) -> Iterator[Cut]:
    """Where annotations are that stand in one line."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.arg) and node.annotation:
            yield from _cut(node.annotation, node.col_offset + len(node.arg.encode()))
        elif isinstance(node, ast.AnnAssign) and in_function and node.value:
            yield from _cut(node.annotation, node.target.end_col_offset or 0)
        elif isinstance(node, ast.FunctionDef) and node.returns:
            before, arrow, _ = lines[node.returns.lineno - 1][: node.returns.col_offset].rpartition(b"->")
            if arrow:
                yield from _cut(node.returns, len(before.rstrip()))
        inside = isinstance(node, ast.FunctionDef) or (in_function and not isinstance(node, ast.ClassDef))
        yield from _annotations(node, lines, in_function=inside)


def _cut(annotation: ast.expr, start: int) -> Iterator[Cut]:
    if annotation.lineno == annotation.end_lineno:
        yield annotation.lineno, start, annotation.end_col_offset or 0


@functools.cache
def zipapp(*, small: bool = True) -> bytes:
    """The zipapp; `python app.pyz keeper …` runs it, and so does what `pslaunch.ssh.boot` sends.

    Small takes two tenths of a second, which nobody should wait for where the size is of no matter.
    """
    packed = io.BytesIO()
    level = 9 if small else 1
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        texts = {name: path.read_text() for name, path in files().items()}
        if small:
            texts = {name: untyped(blank(text)) for name, text in texts.items()}
        first = texts.pop("pslaunch/__init__.py") + _IMPORTER
        members = {"pslaunch/__init__.py": first, _MODULES: _one_text(texts), "__main__.py": MAIN}
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED, level)
    return packed.getvalue()


def _one_text(texts: dict[str, str]) -> str:
    dotted = {name.removesuffix(".py").replace("/", "."): text for name, text in texts.items()}
    return "".join(f"{name} {len(text)}\n{text}" for name, text in dotted.items())
