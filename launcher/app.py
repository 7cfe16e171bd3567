"""What travels to a node: one small zipapp of everything that `pslaunch.node` needs.

Comments, docstrings, what only a type checker reads and most of the indentation are cut, so that it fits
into one argument of a command in base64, and so that the line numbers of a traceback from a node are those
of the sources. The modules are compressed as one text, a quarter less than each by itself; the package's own
first lines know how to import them from there. Where size is of no matter the modules travel compiled too: a
node whose Python is the launcher's begins in half the time.
"""

from __future__ import annotations

import ast
import functools
import io
import itertools
import marshal
import re
import struct
import tokenize
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

import pslaunch
import pslaunch.node
import pslaunch.runtime

SHARED = ("env", "busyport", "nics", "prove")  # modules of the runtime that the launcher's nodes need too
MAIN = "import sys\nfrom pslaunch.node.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"
_TEXTS = "pslaunch/texts"  # name, number of characters, and text of each
_CODES = "pslaunch/codes-"  # and the number of a Python: each module as that one has compiled it
_IMPORTER = """
import _frozen_importlib_external as _external, _imp, marshal as _marshal, sys as _sys, zlib as _zlib
class _Modules:
    def __init__(self, zip):
        self.zip, self.known = zip, {}
        try:
            self.codes = _marshal.loads(self.read("codes-" + _external.MAGIC_NUMBER.hex()))
        except OSError:
            self.codes = {}
    def read(self, name):
        return self.zip.get_data(self.zip.archive + "/pslaunch/" + name)
    @property
    def texts(self):
        text, at = "" if self.known else self.read("texts").decode(), 0
        while at < len(text):
            end = text.index("\\n", at)
            name, size = text[at:end].split()
            at = end + 1 + int(size)
            self.known[name] = text[end + 1 : at]
        return self.known
    def find_spec(self, name, path=None, target=None):
        there = self.codes or self.texts
        whole = name + ".__init__" in there
        if whole or name in there:
            return type(__spec__)(name, self, origin=self.place(name), is_package=whole)
    def place(self, name):
        return self.zip.archive + "/" + name.replace(".", "/") + ".py"
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(self.get_code(module.__name__), module.__dict__)
    def get_code(self, name):
        code = self.codes.get(name + ".__init__", self.codes.get(name))
        if code is None:
            return compile(self.get_source(name), self.place(name), "exec")
        code = _marshal.loads(_zlib.decompress(code))
        _imp._fix_co_filename(code, self.place(name))
        return code
    def get_source(self, name):
        return self.texts.get(name + ".__init__", self.texts.get(name))
_sys.meta_path.insert(0, _Modules(__loader__))
"""
_WINDOW = 32 * 1024  # of deflate
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

    Those of fields stay, from which named tuples are made.
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


def narrow(source: str) -> str:
    """The same program with one space where it is indented by four, every statement in its old line."""
    lines = source.splitlines(keepends=True)
    kept: set[int] = set()  # they go on with what began in the line before, such as a string
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kept.update(range(token.start[0], token.end[0]))
    for i, line in enumerate(lines):
        if i not in kept:
            text = line.lstrip(" ")
            lines[i] = " " * ((len(line) - len(text)) // 4) + text
    return "".join(lines)


@functools.cache
def zipapp(*, small: bool = True) -> bytes:
    """The zipapp; `python app.pyz keeper …` runs it, and so does what `pslaunch.ssh.boot` sends.

    Small takes two tenths of a second, which nobody should wait for where the size is of no matter.
    """
    packed = io.BytesIO()
    level = 9 if small else 1
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        found = files()
        first = found.pop("pslaunch/__init__.py").read_text() + _IMPORTER
        modules = {name.removesuffix(".py").replace("/", "."): path for name, path in found.items()}
        texts = {name: path.read_text() for name, path in modules.items()}
        if small:
            texts = {name: narrow(untyped(blank(text))) for name, text in texts.items()}
            texts = {name: texts[name] for name in _by_likeness(texts)}
        else:
            name = zipfile.ZipInfo(_CODES + MAGIC_NUMBER.hex(), _EPOCH)
            archive.writestr(name, _compiled(modules), zipfile.ZIP_STORED)
            name = zipfile.ZipInfo("pslaunch/__init__.pyc", _EPOCH)
            archive.writestr(name, _pyc(first, "pslaunch/__init__.py"), zipfile.ZIP_DEFLATED, level)
        whole = "".join(f"{name} {len(text)}\n{text}" for name, text in texts.items())
        for path, text in {"pslaunch/__init__.py": first, "__main__.py": MAIN, _TEXTS: whole}.items():
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), text, zipfile.ZIP_DEFLATED, level)
    return packed.getvalue()


def _by_likeness(texts: Mapping[str, str]) -> list[str]:
    """Each after those that share most with it, as far back as deflate sees; rare words count more."""
    words = {name: set(re.findall(r"\w{4,}", text)) for name, text in texts.items()}
    in_how_many = Counter(itertools.chain.from_iterable(words.values()))

    def likeness(name: str, near: list[str]) -> float:
        return sum(len(w) / in_how_many[w] for other in near for w in words[name] & words[other])

    left = sorted(texts, key=lambda name: len(texts[name]))
    order = [left.pop()]
    while left:
        sizes = itertools.accumulate(len(texts[name]) for name in reversed(order))
        near = [
            name
            for name, size in zip(reversed(order), sizes, strict=True)
            if size - len(texts[name]) < _WINDOW
        ]
        order.append(max(left, key=lambda name: likeness(name, near)))
        left.remove(order[-1])
    return order


def _pyc(text: str, path: str) -> bytes:
    """As zipimport takes it from the same Python, and passes it over from any other."""
    source = text.encode()
    code = compile(source, path, "exec", dont_inherit=True)
    unchecked = struct.pack("<I", 1)  # PEP 552: by the hash of a source, which need not be looked at
    return MAGIC_NUMBER + unchecked + source_hash(source) + marshal.dumps(code)


def _compiled(modules: Mapping[str, Path]) -> bytes:
    """Each module as this Python has it in its cache."""
    codes = {name: SourceFileLoader(name, str(path)).get_code(name) for name, path in modules.items()}
    return marshal.dumps({name: zlib.compress(marshal.dumps(code), 1) for name, code in codes.items()})
