"""What travels to a node: one small zipapp of everything that `pslaunch.node` needs.

Comments and docstrings are blanked, so that it fits into one argument of a command in base64, and so that the
line numbers of a traceback from a node are those of the sources. The modules are compressed as one text, a
quarter less than each by itself; the package's own first lines know how to import them from there.
"""

from __future__ import annotations

import functools
import io
import tokenize
import zipfile
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


@functools.cache
def zipapp(*, small: bool = True) -> bytes:
    """The zipapp; `python app.pyz keeper …` runs it, and so does what `pslaunch.ssh.boot` sends.

    Small takes a tenth of a second, which nobody should wait for where the size is of no matter.
    """
    packed = io.BytesIO()
    level = 9 if small else 1
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        texts = {name: path.read_text() for name, path in files().items()}
        if small:
            texts = {name: blank(text) for name, text in texts.items()}
        first = texts.pop("pslaunch/__init__.py") + _IMPORTER
        members = {"pslaunch/__init__.py": first, _MODULES: _one_text(texts), "__main__.py": MAIN}
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED, level)
    return packed.getvalue()


def _one_text(texts: dict[str, str]) -> str:
    dotted = {name.removesuffix(".py").replace("/", "."): text for name, text in texts.items()}
    return "".join(f"{name} {len(text)}\n{text}" for name, text in dotted.items())
