"""pslaunch.toml: the same keys, checks and messages as the command line; and what wins where both speak."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given as arbitrary
from hypothesis import strategies as st

from pslaunch.backends.registry import OWN, find_face
from pslaunch.errors import SpecError
from pslaunch.options.kinds import Value, format_value, to_text
from pslaunch.options.sources import Given, merge_layers
from support.command_line import make_line
from support.pages import section

OPTIONS = [option for name in OWN for option in find_face(name).list_options()]


def gathered(
    folder: Path, text: str, *line: str, backend: str = "local", conf: str = "", **options: str
) -> Given:
    """Return the values for a job with a pslaunch.toml of this text, and variables by options' names."""
    if text:
        (folder / "pslaunch.toml").write_text(text)
    if conf:
        (folder / "conf.py").write_text(conf)
    variables = {f"PSLAUNCH_OPT_{name}": text for name, text in options.items()}
    return make_line(backend, line, folder, {"PSLAUNCH_NODES": "a,b", **variables}).given


def texts(values: Sequence[Value]) -> list[str]:
    return [value.text for value in values]


def test_flag_then_section_then_top_then_conf_then_default(tmp_path: Path) -> None:
    toml = "grace = 1\nlost-after = 11\nport = 8001\n[local]\ngrace = 2\n"
    conf = "PADDLE_PORT = 9001\nPADDLE_PORTS_NUM = 4\n"
    found = gathered(tmp_path, toml, "--stall_after=9", "--conf=conf.py", conf=conf)
    assert [found.read(name) for name in ("stall_after", "grace", "lost_after", "port", "ports_num")] == [
        9.0, 2.0, 11.0, 8001, 4,
    ]  # fmt: skip
    assert found.read("ports_num_for_sparse") == 0
    assert found.get("grace") == Value("2", "pslaunch.toml: [local].grace")
    assert found.files == ("pslaunch.toml", "conf.py")
    assert gathered(tmp_path, "", "--grace=3").read("grace") == 3.0


def test_variables_come_between_the_command_line_and_the_file(tmp_path: Path) -> None:
    toml = "num_passes = 1\nsave_dir = 'of file'\nport = 8001\n[local]\ngrace = 2\nworker_num = 3\n"
    own = {
        "GRACE": "5",
        "SERVER_NUM": "2",
        "DETACH": "yes",
        "IMAGE": "of k8s",
        "NUM_PASSES": "7",
        "NO_SAVE": "1",
    }
    found = gathered(tmp_path, toml, "--server_num=4", "--no_save=0", **own)
    assert [found.read(n) for n in ("grace", "server_num", "worker_num", "port", "detach")] == [
        5.0, 4, 3, 8001, True,
    ]  # fmt: skip
    assert found.trainer_flags == {"num_passes": "7", "no_save": "False", "save_dir": "of file"}
    read = [f"PSLAUNCH_OPT_{name}" for name in ("GRACE", "SERVER_NUM", "DETACH", "NUM_PASSES", "NO_SAVE")]
    assert found.files == (*read, "pslaunch.toml")
    assert found.get("nodes") is None, "PSLAUNCH_NODES is a program's"


def test_variable_has_several_values_as_the_file_writes_them(tmp_path: Path) -> None:
    found = gathered(tmp_path, "env = ['A=0', 'C=0']\n", "--env=A=2", ENV='["A=1", "B=x y"]')
    assert sorted(texts(found.get_all("env"))) == ["A=2", "B=x y", "C=0"]
    assert texts(gathered(tmp_path, "", ENV="{A = 1}").get_all("env")) == ["A=1", "C=0"]
    for text in ("a,b[1-2]:2", "[::1]:2"):
        assert texts(gathered(tmp_path, "", backend="fabric", HOSTS=text).get_all("hosts")) == [text]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "SEVER_NUM",
            "1",
            "PSLAUNCH_OPT_SEVER_NUM: no option of this name; did you mean PSLAUNCH_OPT_SERVER_NUM?",
        ),
        (
            "NNODES",
            "1",
            "PSLAUNCH_OPT_NNODES belongs to torchrun, paddle.distributed.launch, fleetrun: use --nodes N",
        ),
        ("port", "1", "PSLAUNCH_OPT_port: no option of this name; did you mean PSLAUNCH_OPT_PORT?"),
        ("NUM_PASSES", "x", "PSLAUNCH_OPT_NUM_PASSES='x': expected a whole number"),
        ("ENV", "[[]]", "PSLAUNCH_OPT_ENV=[]: expected text"),
        ("PORT", "0", "PSLAUNCH_OPT_PORT=0: expected a whole number from 1"),
        ("JSON", "maybe", "PSLAUNCH_OPT_JSON='maybe': expected true or false"),
    ],
)
def test_wrong_variable_is_named(tmp_path: Path, name: str, text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        gathered(tmp_path, "", **{name: text}).read(name.lower())
    assert str(caught.value).startswith(told)


def test_options_of_another_backend_are_ignored(tmp_path: Path) -> None:
    toml = "root_dir = '/r'\ngrace = 1\n[fabric]\ngrace = 2\nworker_num = 7\n[k8s]\nnodes = 3\n"
    local = gathered(tmp_path, toml)
    assert (local.get("root_dir"), local.read("grace"), local.read("worker_num")) == (None, 1.0, None)
    fabric = gathered(tmp_path, toml, backend="fabric")
    assert (fabric.read("root_dir"), fabric.read("grace"), fabric.read("worker_num")) == ("/r", 2.0, 7)


def test_values_of_every_kind(tmp_path: Path) -> None:
    toml = """
server = "script"
use_gpu = true
grace = "2.5"
detach = true
json = false
num_passes = 3
no-save = true
save_dir = "out"
env = ["A=1", "HOME"]
[fabric]
hosts = ["a", "b[1-2]:22"]
env = { A = 2, "B C" = "x y", D = true }
"""
    found = gathered(tmp_path, toml, "--num_passes=4", backend="fabric")
    assert [found.read(n) for n in ("server", "use_gpu", "grace", "detach", "json")] == [
        "script", True, 2.5, True, False,
    ]  # fmt: skip
    assert found.trainer_flags == {"num_passes": "4", "no_save": "True", "save_dir": "out"}
    assert texts(found.get_all("hosts")) == ["a", "b[1-2]:22"]
    assert texts(found.get_all("env")) == ["A=2", "B C=x y", "D=True", "HOME"]
    for text, value in (("'False'", False), ("0", False), ("'yes'", True), ("1", True)):
        found = gathered(tmp_path, f"detach = {text}\nuse_gpu = {text}\n[local]\nlocal = '0'\n")
        assert (found.read("detach"), found.read("use_gpu")) == (value, value)
        assert found.trainer_flags == {"local": "False"}


def test_variables_of_all_places_come_together(tmp_path: Path) -> None:
    toml = 'env = ["A=top", "B=top"]\n[local]\nenv = ["A=own"]\n'
    conf = "A = B = C = 'conf'\nPADDLE_INIT_SAVE_DIR = 'conf'\n"
    found = gathered(tmp_path, toml, "--env=D=line", "--conf=conf.py", "--save_dir=x", conf=conf)
    assert sorted(texts(found.get_all("env"))) == ["A=own", "B=top", "C=conf", "D=line"]


def test_a_workspace_on_the_command_line_is_not_held_against_a_package_in_the_file(tmp_path: Path) -> None:
    found = gathered(tmp_path, "job_dispatch_package = 'ws'\n", "--job_workspace=.")
    assert "job_workspace" in found and "job_dispatch_package" not in found
    with pytest.raises(SpecError, match=r"job_workspace=w and .*job_dispatch_package=ws are both given"):
        gathered(tmp_path, "job_dispatch_package = 'ws'\njob_workspace = 'w'\n")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\nprt = 1\n", "pslaunch.toml: prt: unknown option; did you mean port?"),
        ("nproc-per-node = 2\n", "pslaunch.toml: nproc-per-node belongs to torchrun"),
        ("[local]\nmonitor_interval = 2\n", "[local].monitor_interval belongs to torchrun: leave it out"),
        ("xyzzy = 1\n", "pslaunch.toml: xyzzy: unknown option"),
        ("[fabirc]\nport = 1\n", "pslaunch.toml: fabirc: unknown option; did you mean fabric?"),
        ("[local]\n\nworkers_num = 2\n", "[local].workers_num: unknown option; did you mean worker_num?"),
        ("[local]\nroot_dir = '/'\n", "pslaunch.toml: [local].root_dir: unknown option here"),
        ("local = 3\n", "pslaunch.toml: local is not a section"),
        ("server-num = 1\nserver_num = 2\n", "pslaunch.toml: server_num is given twice"),
        ("json = 1979-05-27\n", "json=datetime.date(1979, 5, 27): expected true or false"),
        ("server = []\n", "server=[]: expected one of auto, bundled, script"),
        ("env = [[]]\n", "env=[]: expected text, or several in a list"),
        ("[env]\nA = []\n", "pslaunch.toml: env A=[]: expected text or a number"),
        ("job_name = ['a']\n", "job_name=['a']: expected text"),
        ("num_passes = 'x'\n", "pslaunch.toml: num_passes='x'"),
        ("port = \n", "pslaunch.toml: Invalid value"),
        ("a = 1\na = 2\n", "pslaunch.toml: Cannot overwrite a value (at line 2"),
        ("port = 7\n[local", "pslaunch.toml"),
        (f"port = {'9' * 5000}\n", "Exceeds the limit"),
        (f"port = {'[' * 5000}\n", "pslaunch.toml: maximum recursion depth"),
        ("grace = [nan]\n", "grace=[nan]: expected a number of seconds"),
    ],
)
def test_wrong_key_or_value_is_reported_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        gathered(tmp_path, text)
    assert str(caught.value).startswith("pslaunch.toml") and told in str(caught.value)


@pytest.mark.parametrize(("line", "toml"), [("server=both", "server = 'both'"), ("worker_num=0",) * 2])
def test_invalid_value_is_reported_in_the_same_words(tmp_path: Path, line: str, toml: str) -> None:
    name = line.partition("=")[0]
    with pytest.raises(SpecError) as on_line:
        gathered(tmp_path, "", f"--{line}").read(name)
    with pytest.raises(SpecError) as in_file:
        gathered(tmp_path, f"\n{toml}\n").read(name)
    assert str(in_file.value) == str(on_line.value).replace(f"--{name}", f"pslaunch.toml: {name}")


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "pslaunch.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(SpecError, match=r"pslaunch.toml: 'utf-8' codec"):
        gathered(tmp_path, "")
    (tmp_path / "pslaunch.toml").unlink()
    (tmp_path / "pslaunch.toml").mkdir()
    with pytest.raises(SpecError, match=r"pslaunch.toml can't be read: Is a directory"):
        gathered(tmp_path, "")


def test_conf_is_looked_for_on_fabric_only(tmp_path: Path) -> None:
    conf = "HOSTS = ['a']\nPADDLE_PORT = 9001\nPADDLE_NIC = 'eth0'\n"
    assert gathered(tmp_path, "", conf=conf).get("port") is None
    named = gathered(tmp_path, "conf = 'conf.py'\n")
    assert (named.read("port"), named.files) == (9001, ("pslaunch.toml", "conf.py"))
    (tmp_path / "pslaunch.toml").unlink()
    assert texts(gathered(tmp_path, "", backend="fabric").get_all("hosts")) == ["a"]
    (tmp_path / "other.py").write_text("HOSTS = ['b']\n")
    found = gathered(tmp_path, "", "--conf=other.py", backend="fabric")
    assert found.get_all("hosts") == [Value("b", "other.py:1")]
    assert texts(gathered(tmp_path, "", "--hosts=c", backend="fabric").get_all("hosts")) == ["c"]


def test_the_page_shows_a_file_that_is_read(tmp_path: Path) -> None:
    toml = re.search(r"```toml\n(.*?)```", section("options.md", "pslaunch.toml"), re.DOTALL)
    assert toml
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/conf.py").write_text("HOSTS = ['a']\n")
    found = gathered(tmp_path, toml[1], backend="fabric")
    assert texts(found.get_all("hosts")) == ["a"] and found.trainer_flags == {"num_passes": "5"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@arbitrary(values)
def test_any_value_of_a_file_is_read_or_reported(value: object) -> None:
    for option in OPTIONS:
        with contextlib.suppress(SpecError):
            option.kind.read(to_text(option.kind, value, "x"), "x")
    assert len(format_value(value)) <= 60


layers = st.lists(
    st.dictionaries(
        st.sampled_from(["port", "grace", "server"]),
        st.builds(Value, st.text(), st.text()).map(lambda v: [v]),
    )
)


@arbitrary(layers)
def test_the_highest_place_that_gives_an_option_wins(places: list[dict[str, list[Value]]]) -> None:
    merged = merge_layers(places)
    for name in {name for place in places for name in place}:
        assert merged[name] == next(place[name] for place in places if name in place)
