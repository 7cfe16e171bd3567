"""Command lines split by owner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.errors import SpecError
from pslaunch.options.args import NEAR, Split, split_command_line
from pslaunch.options.foreign import FOREIGN
from pslaunch.options.kinds import Text, Value
from pslaunch.options.options import Option, make_flag
from pslaunch.runtime.shared.env import TRAINER_FLAGS, find_near

OPTIONS = {name: Option(name, Text(), "") for name in ("server_num", "server", "conf")}
OPTIONS |= {"env": Option("env", Text(repeatable=True), "")}
OPTIONS |= {name: make_flag(name, "") for name in ("json", "help")}
NAMES = [*OPTIONS, *TRAINER_FLAGS]
ELSEWHERE = {name for rows in FOREIGN.values() for names in rows for name in names.split()}

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
plain_words = words.filter(lambda w: not w.startswith("-"))
foreign_names = st.from_regex(r"[a-z][a-z0-9_.-]{0,14}", fullmatch=True).filter(
    lambda n: (
        n.replace("-", "_") not in (*NAMES, *ELSEWHERE) and not find_near(n.replace("-", "_"), NAMES, NEAR)
    )
)
foreign = st.one_of(
    foreign_names.map(lambda n: f"--{n}"), st.builds(lambda n, v: f"--{n}={v}", foreign_names, words)
)


def split(*line: str) -> Split:
    owners = {"hosts": ["fabric"], "include": ["fabric"], "worker_num": []}
    return split_command_line(line, OPTIONS, lambda name: owners.get(name, []))


def ours(**texts: str) -> dict[str, list[Value]]:
    return {name: [Value(text, f"--{name}")] for name, text in texts.items()}


@given(st.lists(foreign), plain_words.map("{}.py".format), st.lists(words))
def test_words_after_the_program_are_its_own(before: list[str], program: str, after: list[str]) -> None:
    found = split("--server_num", "2", *before, program, *after)
    assert found.ours == ours(server_num="2")
    assert found.forwarded == tuple(before)
    assert found.program == program
    assert found.program_args == tuple(after)


@given(st.lists(foreign), st.lists(words))
def test_two_dashes_end_ours(before: list[str], after: list[str]) -> None:
    found = split(*before, "--", *after)
    program_follows = bool(after) and not after[0].startswith("-")
    assert found.forwarded == tuple(before)
    assert found.program == (after[0] if program_follows else None)
    assert found.program_args == tuple(after[1:] if program_follows else after)


@given(st.lists(words))
def test_no_word_is_lost_and_none_is_invented(line: list[str]) -> None:
    try:
        found = split(*line)
    except SpecError as e:
        assert str(e)
        return
    rest = [] if found.program is None else [found.program]
    tail = [*rest, *found.program_args]
    assert line[len(line) - len(tail) :] == tail
    head = " ".join(line[: len(line) - len(tail)])
    for name, values in found.ours.items():
        text = values[0].text
        assert name in head.replace("-", "_") and (text in head or text in ("True", "False"))
    for word in found.forwarded:
        assert word in head


@given(st.sampled_from([name for name, option in OPTIONS.items() if option.kind.values]), words)
def test_a_value_survives_byte_for_byte(name: str, value: str) -> None:
    assert split(f"--{name}={value}").ours == ours(**{name: value})
    if not value.startswith("--"):
        assert split(f"--{name}", value).ours == ours(**{name: value})


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--server-num=3", Split(ours(server_num="3"))),
        ("--server_num -1", Split(ours(server_num="-1"))),
        ("--env A=1 --env=B", Split({"env": [*ours(env="A=1")["env"], *ours(env="B")["env"]]})),
        ("--config=v1.py", Split(forwarded=("--config=v1.py",))),
        ("--json=yes train.py", Split(ours(json="True"), program="train.py")),
        ("--json=0 train.py", Split(ours(json="False"), program="train.py")),
        ("--json=", Split(ours(json="False"))),
        ("--num-passes 4", Split(ours(num_passes="4"))),
        ("--local train.py", Split(ours(local="True"), program="train.py")),
        ("--save_dir=out t.py --local", Split(ours(save_dir="out"), (), "t.py", ("--local",))),
        ("--local=false", Split(ours(local="False"))),
    ],
)
def test_words_by_owner(line: str, found: Split) -> None:
    assert split(*line.split()) == found


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (["--server_nums", "2"], ["--server_nums", "--server_num"]),
        (["--servers=a:1"], ["--servers", "--server"]),
        (["--pservers", "2"], ["--pservers", "use --server_num"]),
        (["-s", "3"], ["-s", "use --server_num"]),
        (["--num-servers=3"], ["--num-servers", "use --server_num"]),
        (["--num_pass=2"], ["--num_pass", "--num_passes"]),
        (["--confg=x"], ["--confg", "--conf"]),
        (["-y", "3"], ["-y", "two dashes"]),
        (["-n", "3"], ["-n belongs to mpirun", "use --worker_num"]),
        (["--nproc-per-node", "2", "train.py"], ["--nproc-per-node belongs to torchrun", "use --worker_num"]),
        (["--rdzv_endpoint=a:1"], ["--rdzv_endpoint belongs to torchrun: leave it out"]),
        (["--ips=a"], ["--ips belongs", "use --hosts LIST of pslaunch fabric"]),
        (["-i", "n1"], ["deepspeed: use --include LIST", "horovodrun: write it into ~/.ssh/config"]),
        (["--usr", "root", "--server=auto", "train.py"], ["unknown option --usr", "--usr=root"]),
        (["--env", "A=1", "B=2"], ["B=2 is not a program", "--env before it"]),
        (["-x"], ["-x"]),
        (["-server_num=2"], ["-server_num", "--server_num?"]),
        (["-"], ["-"]),
        (["---x"], ["---x"]),
        (["--=3"], ["--=3"]),
        (["--server_num"], ["--server_num", "value"]),
        (["--server_num", "--json"], ["--server_num", "value", "--json"]),
        (["--server_num", "--"], ["--server_num", "value"]),
        (["--json=maybe"], ["--json", "maybe"]),
        (["--no_json"], ["--no_json", "did you mean --json=false?"]),
        (["--server_num=1", "--server-num=2"], ["--server_num", "twice"]),
        (["--num_passes=1", "--num_passes=1"], ["--num_passes", "twice"]),
        (["--local=maybe"], ["--local", "maybe"]),
    ],
)
def test_ambiguous_word_is_an_error_that_names_it(line: list[str], names: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        split(*line)
    for name in names:
        assert name in str(caught.value)
