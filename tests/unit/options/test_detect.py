"""What a program's text says: its pservers, its syntax, its third-party imports."""

import ast
import gc
from pathlib import Path

import pytest

from pslaunch.errors import SpecError
from pslaunch.options.detect import (
    MAX_BYTES,
    check_needs,
    check_syntax,
    choose_server,
    find_gpu_use,
    find_imports,
    has_import,
)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/').replace('INIT', '__init__')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def detect_in(ws: Path, **files: str) -> tuple[str, str]:
    write(ws, **files)
    return choose_server("auto", None, ws, "train.py")


@pytest.mark.parametrize(
    "text",
    [
        "import fleet\nif fleet.is_server(): fleet.run_server()",
        "from fleet import run_server\nrun_server()",
        "import os\nrole = os.environ['TRAINING_ROLE']",
        "import os\nrole = os.getenv('TRAINING_ROLE', 'TRAINER')",
    ],
)
def test_a_program_that_asks_for_its_role_is_a_script(tmp_path: Path, text: str) -> None:
    kind, why = detect_in(tmp_path, train=text)
    assert kind == "script"
    assert "train.py:" in why


@pytest.mark.parametrize(
    ("train", "module"),
    [
        ("import lib", "lib"),
        ("from lib import go", "lib"),
        ("import pkg.deep.mod", "pkg__deep__mod"),
        ("from pkg import mod", "pkg__mod"),
        ("from pkg import thing", "pkg__INIT"),
        ("def f():\n    import lib", "lib"),
    ],
)
def test_modules_of_the_workspace_are_read_too(tmp_path: Path, train: str, module: str) -> None:
    kind, why = detect_in(tmp_path, **{"train": train, module: "x.is_server()"})
    assert kind == "script"
    assert "is_server" in why


def test_relative_imports_and_circles_are_followed(tmp_path: Path) -> None:
    kind, why = detect_in(
        tmp_path,
        train="import pkg.a",
        pkg__INIT="",
        pkg__a="from . import b\nimport train",
        pkg__b="from .a import x\nfrom ... import nothing\nfrom .c import y",
        pkg__c="run_server()",
    )
    assert (kind, why) == ("script", "pkg/c.py:1 asks for its role (run_server)")


@pytest.mark.parametrize(
    "text",
    [
        '"""Says TRAINING_ROLE and is_server in words."""\n# run_server\nimport numpy, os\n',
        "import lib",  # outside
        "x = '\\d' is 'y'",  # with warnings
        # Names that only begin like the runtime.
        "import paddleocr, pslaunch\nfrom pslaunch import launch\nfrom . import paddle\n"
        "x.import_module('re')",
    ],
)
def test_any_other_has_no_pserver_unless_a_number_is_given(tmp_path: Path, text: str) -> None:
    write(tmp_path, lib="is_server()")
    kind, why = detect_in(tmp_path / "ws", train=text)
    assert (kind, "train.py imports neither" in why) == ("none", True)
    assert choose_server("auto", 2, tmp_path / "ws", "train.py")[0] == "bundled"


@pytest.mark.parametrize(
    "text",
    [
        "import paddle.fluid as fluid",
        "from pslaunch import runtime",
        "import torch\nimport pslaunch.torch",
        "try:\n    import paddle\nexcept ImportError:\n    import pslaunch.runtime as paddle",
        "def f():\n    from paddle.v2 import layer",
        "import importlib\npaddle = importlib.import_module('paddle')",
        "import torch\nimport tensorflow\nimport lib",
    ],
)
def test_program_of_a_runtime_with_pservers_is_bundled(tmp_path: Path, text: str) -> None:
    kind, why = detect_in(tmp_path, train=text, lib="import paddle")
    assert (kind, "does not ask for its role" in why) == ("bundled", True)


def test_imports_of_a_module_are_found_guarded_or_not(tmp_path: Path) -> None:
    write(
        tmp_path, train="import lib", lib="try:\n    import tensorflow.keras\nexcept ImportError:\n    pass"
    )
    assert has_import(tmp_path, "train.py", "tensorflow")
    assert not has_import(tmp_path, "train.py", "tensor")
    assert not has_import(tmp_path, "train.sh", "tensorflow")


@pytest.mark.parametrize("text", [b"print 'python 2'", b"\xff\xfe", b"a\0b", b"(" * 5000, b"if"])
def test_unreadable_program_is_bundled_and_reported(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "train.py").write_bytes(text)
    kind, why = choose_server("auto", None, tmp_path, "train.py")
    assert kind == "bundled" and "can't be read" in why and "--server" in why
    for name in ("train.py", "gone.py", "run.sh"):
        assert find_imports(tmp_path / name, tmp_path) == ({}, {})


def test_syntax_error_is_found_by_its_line(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("import os\ndef f(:\n")
    with pytest.raises(SpecError, match=r"train\.py is not a program of Python 3\.\d+: line 2: invalid"):
        check_syntax(program, None, is_remote=True)
    with pytest.raises(SpecError, match=r"Python 3\.\d+, nor of /bin/false: line 2"):
        check_syntax(program, "/bin/false", is_remote=False)
    check_syntax(program, "/bin/true", is_remote=False)  # an interpreter that can parse it
    check_syntax(program, "python3.99", is_remote=True)


@pytest.mark.parametrize("name", ["train.py", "absent.py", "train.sh"])
def test_program_without_a_syntax_error_passes(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text("return  # perhaps a part of a program")
    (tmp_path / "train.sh").write_text("echo 'no Python")
    check_syntax(tmp_path / name, None, is_remote=False)


def test_encoding_that_a_program_declares_is_honoured(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes("# -*- coding: latin-1 -*-\nimport paddle  # \xe9".encode("latin-1"))
    check_syntax(tmp_path / "train.py", None, is_remote=False)
    assert choose_server("auto", None, tmp_path, "train.py")[0] == "bundled"


def test_what_was_not_read_is_named(tmp_path: Path) -> None:
    kind, why = detect_in(tmp_path, train="import lib", lib="print 1")
    assert (kind, "lib.py" in why) == ("bundled", True)
    kind, why = choose_server("auto", 1, tmp_path, "train.sh")
    assert (kind, "not read" in why) == ("bundled", True)
    kind, why = choose_server("auto", None, tmp_path, "train.sh")
    assert (kind, "no Python program" in why) == ("none", True)


def test_choice_of_the_user_wins(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("is_server()")
    assert choose_server("auto", 1, tmp_path, "train.py")[0] == "script"
    assert choose_server("bundled", 1, tmp_path, "train.py")[0] == "bundled"
    assert choose_server("script", None, tmp_path, "train.py")[0] == "script"
    assert choose_server("auto", 0, tmp_path, "train.py")[0] == "none"


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


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("import numpy", ""),
        ("paddle.init(use_gpu=False)", ""),
        ("paddle.init(use_gpu=True)", "sees"),
        ("def f():\n    import jax.numpy", "sees"),
        ("from tensorflow import keras", "sees"),
        ("import lib", "sees"),
        ("import lib, os\nos.environ['LOCAL_RANK']", "chooses"),
        ("import lib\nparser.add_argument('--local-rank')", "chooses"),
        ("import torch\ntorch.cuda.set_device(rank)", "chooses"),
        ("import torch, accelerate", "chooses"),
        ("try:\n    import torch\nexcept ImportError:\n    pass", "sees"),
        ("os.environ['LOCAL_RANK']", ""),
        ("import (", ""),
    ],
)
def test_gpus_that_a_program_uses_and_may_choose(tmp_path: Path, text: str, use: str) -> None:
    write(tmp_path, train=text, lib="import torch")
    assert find_gpu_use(tmp_path / "train.py", tmp_path) == use
    (tmp_path / "train").write_text("import torch")
    assert find_gpu_use(tmp_path / "train", tmp_path) == ""


def test_what_was_read_is_kept_without_its_trees(tmp_path: Path) -> None:
    def count_trees() -> int:
        return sum(isinstance(one, ast.Module) for one in gc.get_objects())

    before = count_trees()
    detect_in(tmp_path, train="import lib", lib="import torch")
    assert find_gpu_use(tmp_path / "train.py", tmp_path) == "sees"
    assert count_trees() <= before
    write(tmp_path, lib="import tensorflow.keras")
    assert has_import(tmp_path, "train.py", "tensorflow")


def test_modules_imported_by_a_call_are_read_and_texts_are_no_imports(tmp_path: Path) -> None:
    detect_in(tmp_path, train="importlib.import_module('lib')\nx = 'tensorflow'", lib="is_server()")
    assert choose_server("auto", None, tmp_path, "train.py")[0] == "script"
    assert not has_import(tmp_path, "train.py", "tensorflow")
    assert detect_in(tmp_path, train=f"import {'a' * 300}, x\nimport_module('a\\0b/..')")[0] == "none"


def test_needs_are_those_of_python_programs_of_usual_size(tmp_path: Path) -> None:
    text = "# pslaunch: needs gone.bin: make it in {folder}\r\n"
    for name, size in (("tool", 0), ("big.py", MAX_BYTES)):
        (tmp_path / name).write_text(text + " " * size, newline="")
        check_needs(tmp_path, name)
    (tmp_path / "train.py").write_text(text, newline="")
    with pytest.raises(SpecError, match=rf"train\.py needs gone\.bin, .*: make it in {tmp_path}$"):
        check_needs(tmp_path, "train.py")
