"""Third-party imports of a program, read from its text."""

from __future__ import annotations

from pathlib import Path

from pslaunch.options.imports import find_imports


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_names_and_places_without_pythons_own_and_the_workspaces(tmp_path: Path) -> None:
    text = "import os, numpy.linalg as la\nimport mine\nfrom pkg.sub import x\nfrom . import other\n"
    write(tmp_path, train=text, mine="import scipy\nimport numpy\n", pkg__sub="from yaml import load\n")
    found = find_imports(tmp_path / "train.py", tmp_path)
    assert found.needed == {"numpy": "train.py:1", "scipy": "mine.py:1", "yaml": "pkg/sub.py:1"}
    assert found.later == {}


def test_guarded_imports_are_left_out_and_later_ones_separate(tmp_path: Path) -> None:
    text = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import only_types\n"
        "try:\n    import fast\nexcept ImportError:\n    import slow\nelse:\n    import with_fast\n"
        "try:\n    import tried\nexcept (OSError, ImportError): pass\n"
        "try:\n    import needed\nexcept OSError: pass\n"
        "def f():\n    import late\n    import needed\n"
        "class A:\n    import at_once\n    def g(self): import late\n"
        "with open('x') as f:\n    import within\n"
    )
    write(tmp_path, train=text)
    found = find_imports(tmp_path / "train.py", tmp_path)
    assert set(found.needed) == {"needed", "at_once", "within"}
    assert found.later == {"late": "train.py:17"}


def test_programs_that_can_not_be_read_need_nothing(tmp_path: Path) -> None:
    write(tmp_path, train="import (\n")
    (tmp_path / "run.sh").write_text("import numpy\n")
    for name in ("train.py", "run.sh", "gone.py"):
        assert find_imports(tmp_path / name, tmp_path).needed == {}
