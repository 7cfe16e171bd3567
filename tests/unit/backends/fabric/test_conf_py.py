"""conf.py: published ones are read as they are, and every wrong one is reported with file, line and name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pslaunch.backends.fabric.conf_py import KEYS, read_conf
from pslaunch.backends.registry import get_options
from pslaunch.errors import SpecError
from pslaunch.options.kinds import SourceValues, Value

FILE = "conf.py"


# With the names and the forms of published files.
PUBLISHED = """# Cluster of the first pages.
HOSTS = [
        "root@192.168.100.17",
        "root@192.168.100.18:9090",
        ]

'''
where workspaces go
'''
ROOT_DIR = "/home/paddle"

#interface
PADDLE_NIC = "eth0"
PADDLE_PORT = 7164
PADDLE_PORTS_NUM = 1
PADDLE_PORTS_NUM_FOR_SPARSE = 2
LD_LIBRARY_PATH="/usr/local/cuda/lib64:/usr/lib64"
#on a GPU?
PADDLE_USE_GPU = "False"
"""


def read(folder: Path, source: str | bytes) -> SourceValues:
    path = folder / FILE
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return read_conf(path, FILE)


def test_published_conf_gives_its_options(tmp_path: Path) -> None:
    assert read(tmp_path, PUBLISHED) == {
        "hosts": [
            Value("root@192.168.100.17", "conf.py:3"),
            Value("root@192.168.100.18:9090", "conf.py:4"),
        ],
        "root_dir": [Value("/home/paddle", "conf.py:10: ROOT_DIR")],
        "nics": [Value("eth0", "conf.py:13: PADDLE_NIC")],
        "port": [Value("7164", "conf.py:14: PADDLE_PORT")],
        "ports_num": [Value("1", "conf.py:15: PADDLE_PORTS_NUM")],
        "ports_num_for_sparse": [Value("2", "conf.py:16: PADDLE_PORTS_NUM_FOR_SPARSE")],
        "env": [Value("LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/lib64", "conf.py:17:")],
        "use_gpu": [Value("False", "conf.py:19: PADDLE_USE_GPU")],
    }


@pytest.mark.parametrize(
    ("source", "name", "values"),
    [
        ("PADDLE_PORT = '7164'", "port", [Value("7164", "conf.py:1: PADDLE_PORT")]),
        ("PADDLE_PORTS_NUM = 'x'", "ports_num", [Value("x", "conf.py:1: PADDLE_PORTS_NUM")]),  # judged later
        (
            "PADDLE_PORT = 1\nfor PADDLE_PORT in (2, 3):\n    pass",
            "port",
            [Value("3", "conf.py:2: PADDLE_PORT")],
        ),
        ("JOB_NAME = PADDLE_NIC = 'x'", "nics", [Value("x", "conf.py:1: PADDLE_NIC")]),
        (
            "PADDLE_WITH_GLOO = 1\nPADDLE_DATA_HOME = '/d'\nPADDLE_INIT_SEED = 3",
            "env",
            [
                Value("PADDLE_WITH_GLOO=1", "conf.py:1:"),
                Value("PADDLE_DATA_HOME=/d", "conf.py:2:"),
                Value("PADDLE_INIT_SEED=3", "conf.py:3:"),
            ],
        ),
    ],
)
def test_values_have_the_place_of_their_last_assignment(
    tmp_path: Path, source: str, name: str, values: list[Value]
) -> None:
    assert read(tmp_path, source)[name] == values


def test_it_is_python_in_a_namespace_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = """
import os.path
from pathlib import Path
names = [f"node{i}" for i in range(3)]
HOSTS = ["root@" + name for name in names]
BASE = Path("/data")
ROOT_DIR = os.path.join(str(BASE), __name__)
RATE, DEBUG, WORD, _HIDDEN, Mixed = 0.5, True, "a b\\n$x", "no", "no"
DETAILS = {"rack": 7}
def JOB(): return ROOT_DIR
print(__file__, "\\d")
"""
    found = read(tmp_path, source)
    assert [value.text for value in found["hosts"]] == ["root@node0", "root@node1", "root@node2"]
    assert {value.label for value in found["hosts"]} == {"conf.py:5"}
    assert found["root_dir"][0].text == "/data/conf"
    assert [value.text for value in found["env"]] == ["RATE=0.5", "DEBUG=True", "WORD=a b\n$x"]
    assert capfd.readouterr() == ("", f"{tmp_path / FILE} \\d\n"), "our output stays ours"


def test_modules_beside_it_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "rack_of_test").mkdir()
    (tmp_path / "rack_of_test/__init__.py").write_text("from rack_of_test.names import NAME\n")
    (tmp_path / "rack_of_test/names.py").write_text("NAME = 'a'\n")
    found = read(tmp_path, "from rack_of_test import NAME\nHOSTS = [NAME]\n")
    assert [value.text for value in found["hosts"]] == ["a"]
    assert not list(tmp_path.rglob("__pycache__"))
    with pytest.raises(SpecError, match=r"^conf.py:1: ZeroDivisionError"):
        (tmp_path / "wrong_of_test.py").write_text("1 / 0\n")
        read(tmp_path, "import wrong_of_test\n")
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("HOSTS = [\n'a',\n", "conf.py:1: SyntaxError: '[' was never closed"),
        ("x = 1\nHOSTS = nodes()\n", "conf.py:2: NameError: name 'nodes' is not defined"),
        ("def f():\n    return 1 / 0\n\nPORT = f()\n", "conf.py:2: ZeroDivisionError: division by zero"),
        (
            "import json\njson.loads('{')\n",
            "conf.py:2: json.decoder.JSONDecodeError: Expecting property name",
        ),
        ("import no_such_module", "conf.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("exit(3)", "conf.py:1: SystemExit: 3"),
        (b"A = '\xff'", "conf.py:1: SyntaxError"),
        (b"A = 1\0", "null bytes"),
        ("\nPADDLE_PORTS = 1", "conf.py:2: PADDLE_PORTS: unknown name; did you mean PADDLE_PORT?"),
        ("PADDLE_NICS = 'eth0'", "conf.py:1: PADDLE_NICS: unknown name; did you mean PADDLE_NIC?"),
        ("\nPADLE_PORT = 1", "conf.py:2: PADLE_PORT: unknown name; did you mean PADDLE_PORT?"),
        ("HOST = ['a']", "conf.py:1: HOST: unknown name; did you mean HOSTS?"),
        ("paddle_port = 1", "conf.py:1: paddle_port: unknown name; did you mean PADDLE_PORT?"),
        ("PADDLE_XYZZY = ''", "conf.py:1: PADDLE_XYZZY: unknown name; known names: HOSTS, ROOT_DIR"),
        ("HOSTS = 'a'", "conf.py:1: HOSTS='a': expected a list"),
        ("HOSTS = [\n 'a',\n 3]", "conf.py:3: HOSTS has 3, which is not text"),
        ("if True:\n    PADDLE_PORT = [7164]", "conf.py:2: PADDLE_PORT=[7164]: expected a whole number"),
        ("PADDLE_USE_GPU = []", "PADDLE_USE_GPU=[]: expected true or false"),
        ("PADDLE_PORT = 10**5000", "PADDLE_PORT=<int>: expected a whole number"),
        (
            "class A:\n    def __repr__(self): return 1/0\nROOT_DIR = A()",
            "conf.py:3: ROOT_DIR=<A>: expected text",
        ),
        ("JOB_NAME = ['x' * 90]", f"JOB_NAME=['{'x' * 55}...: expected text"),
        ("PADDLE_WITH_GLOO = []", "PADDLE_WITH_GLOO=[]: expected text or a number"),
    ],
)
def test_error_is_reported_with_its_line(tmp_path: Path, source: str | bytes, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, source)
    assert str(caught.value).startswith("conf.py") and told in str(caught.value)


def test_values_left_out_are_reported_in_one_line(tmp_path: Path) -> None:
    source = """
import math as M
from pathlib import Path as P
def F(): pass
RANGE = range(3)
HOSTS = [f"n{i}" for i in RANGE]
ROOT = P("/d")
EMPTY = None
small = []
KEPT = 1.5
"""
    (tmp_path / "conf.py").write_text(source)
    told: list[str] = []
    found = read_conf(tmp_path / "conf.py", "conf.py", told.append)
    assert [v.text for v in found["env"]] == ["KEPT=1.5"]
    assert told == [
        "conf.py:5: RANGE, conf.py:7: ROOT, conf.py:8: EMPTY: not text or a number, so not passed to the "
        "programs"
    ]


def test_missing_file_is_reported_by_its_given_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"^my/conf.py can't be read: No such file"):
        read_conf(tmp_path / "my/conf.py", "my/conf.py")


def test_every_name_is_an_option() -> None:
    assert set(KEYS.values()) <= set(get_options("fabric"))
