"""Datasets: settings, commands, shuffles, and passes of an executor."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
import threading
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslaunch.runtime as paddle
from pslaunch.runtime.paddle2 import static
from pslaunch.runtime.paddle2.distributed import InMemoryDataset, QueueDataset
from pslaunch.runtime.paddle2.program.initializer import Constant
from support.process import poll_until, until_gone
from support.static import run_startup


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return three files with the words 0 to 9, one of them empty."""
    found = [tmp_path / name for name in ("a.txt", "b.txt", "c.txt")]
    words = range(7), range(0), range(7, 10)
    for path, own in zip(found, words, strict=True):
        path.write_text("".join(f"1 {word}\n" for word in own))
    return list(map(str, found))


def make_dataset(kind: type[QueueDataset], files: list[str], **settings: Any) -> Any:
    dataset = kind()
    dataset.init(batch_size=4, use_var=[static.data("word", [None, 1], "int64")], **settings)
    dataset.set_filelist(files)
    return dataset


def read_words(dataset: QueueDataset) -> list[list[int]]:
    """Return the words of each batch, the only slot."""
    batches = [np.asarray(next(iter(batch.values()))) for batch in dataset.read_batches()]
    return [batch[:, 0].tolist() for batch in batches]


def write_command(code: str) -> str:
    """Return a pipe_command that runs Python code."""
    return f'python -c "{code}"'


@pytest.mark.parametrize(
    "command",
    [
        "cat",
        "cat -",
        write_command("import sys; print(sys.stdin.read(), end='')"),
        "sed -e 's/|;<>&/x/' -e ''",
        'sed "s/\\"|\\"/x/"',
        r"sed s/a\|b/x/",
    ],
)
@pytest.mark.parametrize("kind", [QueueDataset, InMemoryDataset])
def test_batches_have_the_samples_of_all_files_in_order(
    files: list[str], kind: type[QueueDataset], command: str
) -> None:
    dataset = make_dataset(kind, files, pipe_command=command, thread_num=2)
    for _ in range(2):
        if isinstance(dataset, InMemoryDataset):
            dataset.load_into_memory()
            assert dataset.get_memory_data_size() == 10
        assert read_words(dataset) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_command_is_found_beside_the_running_python(files: list[str]) -> None:
    code = "import sys; assert sys.stdin.read(); print(1, sys.executable == sys.argv[1] and 5)"
    dataset = make_dataset(QueueDataset, files[:1], pipe_command=f'{write_command(code)} "{sys.executable}"')
    assert read_words(dataset) == [[5]]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import sys; sys.exit('no columns')", r"ended with 1: no columns$"),
        ("import sys; print('1 5'); sys.exit(3)", r"ended with 3: it printed no error$"),
        ("import sys; print('1 5\\\\n1', end=''); sys.exit(4)", r"ended with 4: it printed no error$"),
    ],
)
def test_failure_of_a_command_is_named_with_its_last_words(files: list[str], code: str, text: str) -> None:
    dataset = make_dataset(InMemoryDataset, files[:1], pipe_command=write_command(code))
    with pytest.raises(RuntimeError, match=rf"a\.txt: pipe_command .*python.*{text}"):
        dataset.load_into_memory()


def test_malformed_output_of_a_command_is_named(files: list[str]) -> None:
    dataset = make_dataset(QueueDataset, files, pipe_command=write_command("print('1 5'); print('1 x')"))
    with pytest.raises(ValueError, match=r"a\.txt, pipe_command '.*':2: slot word has the value 'x'"):
        read_words(dataset)


def test_words_of_a_command_without_failure_go_to_standard_error(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; print('1 5'); print('a note', file=sys.stderr)"
    assert read_words(make_dataset(QueueDataset, files[:1], pipe_command=write_command(code))) == [[5]]
    assert capsys.readouterr().err == "a note\n"


def test_endless_command_ends_with_its_reader(files: list[str]) -> None:
    code = "import itertools; [print('1 5') for _ in itertools.count()]"
    batches = make_dataset(QueueDataset, files, pipe_command=write_command(code)).read_batches()
    assert len(next(batches)["word"]) == 4
    batches.close()  # waits for the command's end


def test_children_of_a_command_end_with_its_reader(files: list[str], tmp_path: Path) -> None:
    command = f"sh -c 'sleep 60 & echo $! > {tmp_path}/pid; yes 1 5'"
    batches = make_dataset(QueueDataset, files, pipe_command=command).read_batches()
    assert len(next(batches)["word"]) == 4
    pid = int((tmp_path / "pid").read_text())
    batches.close()
    until_gone(pid, within_s=45)


@pytest.mark.parametrize("code", [0, 1])
def test_long_standard_error_of_a_command_is_not_held_in_memory(
    files: list[str], monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    command = f"sh -c 'yes a note | head -c 16777216 >&2; echo the end >&2; echo 1 5; exit {code}'"
    dataset = make_dataset(QueueDataset, files[:1], pipe_command=command)
    with Path(os.devnull).open("w") as nowhere, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", nowhere)
        tracemalloc.start()
        try:
            if code:
                with pytest.raises(RuntimeError, match=r"a note\n.*the end$"):
                    read_words(dataset)
            else:
                assert read_words(dataset) == [[5]]
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


@pytest.fixture
def interrupted_once_written(tmp_path: Path) -> Iterator[Path]:
    """Return a file; KeyboardInterrupt is raised once it is there and this thread waits for a result."""
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    path, main = tmp_path / "begun", threading.get_ident()

    def is_awaited() -> bool:
        stack = traceback.walk_stack(sys._current_frames()[main])
        return path.exists() and any(frame.f_code.co_name in ("result", "get") for frame, _ in stack)

    def interrupt() -> None:
        poll_until(is_awaited, describe="the command begins")
        signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield path
    thread.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("kind", "use"),
    [
        (InMemoryDataset, lambda one: one.load_into_memory()),
        (InMemoryDataset, lambda one: (one.preload_into_memory(), one.wait_preload_done())),
        (QueueDataset, lambda one: static.Executor().train_from_dataset(dataset=one)),
    ],
)
def test_interrupt_ends_silent_commands(
    files: list[str],
    interrupted_once_written: Path,
    kind: type[QueueDataset],
    use: Callable[[QueueDataset], object],
) -> None:
    begun = interrupted_once_written
    command = f"sh -c 'touch {begun}; sleep 60; touch {begun}.end'"
    with pytest.raises(KeyboardInterrupt):
        use(make_dataset(kind, files[:1], pipe_command=command))
    assert not Path(f"{begun}.end").exists()


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"batchsize": 4}, r"QueueDataset.init: no argument batchsize; did you mean batch_size\?"),
        ({"batch_size": 0}, r"QueueDataset.init: batch_size=0: expected a whole number from 1 to"),
        ({"thread_num": "two"}, r"QueueDataset.init: thread_num='two': expected a whole number"),
        ({"use_var": ["word"]}, r"QueueDataset.init: use_var has 'word', expected variables of static.data"),
        ({"use_var": 5}, r"QueueDataset.init: use_var=5 is not a list;  expected variables of static.data"),
        ({"fs_name": "hdfs://a"}, r"fs_name='hdfs://a' is not in this runtime: .* mount or copy them"),
        ({"pipe_command": ""}, r"pipe_command is empty"),
        ({"pipe_command": None}, r"init: pipe_command=None, expected a program with its arguments, or cat"),
        (
            {"pipe_command": "cat 'a"},
            r'init: pipe_command="cat \'a": No closing quotation; expected a program',
        ),
        (
            {"pipe_command": "zcat | cut -f1"},
            r"without a shell; give one program, or sh -c 'zcat \| cut -f1'",
        ),
        ({"pipe_command": "zcat|cut -f1"}, r"give one program, or sh -c 'zcat\|cut -f1'"),
        ({"pipe_command": "python reader.py 2>&1"}, r"give one program, or sh -c 'python reader.py 2>&1'"),
        ({"pipe_command": "sed 's/a/b/'; cat"}, r"give one program, or sh -c "),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        QueueDataset().init(**settings)


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda one: next(QueueDataset().read_batches()), r"QueueDataset: call init\(batch_size=.*first"),
        (lambda one: one.local_shuffle(), r"InMemoryDataset.local_shuffle: call load_into_memory\(\) first"),
        (lambda one: next(one.read_batches()), r"InMemoryDataset.read_batches: call load_into_memory\(\)"),
        (lambda one: one.wait_preload_done(), r"call preload_into_memory\(\) first"),
        (lambda one: (one.set_filelist([]), one.load_into_memory()), r"no files; call set_filelist"),
    ],
)
def test_uses_in_a_wrong_order_are_named(
    files: list[str], use: Callable[[InMemoryDataset], object], error: str
) -> None:
    with pytest.raises(RuntimeError, match=error):
        use(make_dataset(InMemoryDataset, files))


def test_dates_and_shuffles_of_slots_are_checked_and_refused(files: list[str]) -> None:
    dataset = make_dataset(InMemoryDataset, files)
    dataset.set_date("20211111")
    with pytest.raises(ValueError, match="'2021-11-11', expected YYYYMMDD"):
        dataset.set_date("2021-11-11")
    with pytest.raises(ValueError, match=r"slots_shuffle\(\['word'\]\) is not in this runtime: shuffle"):
        dataset.slots_shuffle(["word"])


def test_missing_programs_and_files_are_named(files: list[str]) -> None:
    with pytest.raises(
        RuntimeError, match=r"pipe_command 'no-such-program -x': No such file .*expected a program"
    ):
        read_words(make_dataset(QueueDataset, files, pipe_command="no-such-program -x"))
    dataset = QueueDataset()
    dataset.init(use_var=[static.data("other", [None, 1])])
    dataset.set_filelist([files[0], "gone.txt"])
    with pytest.raises(FileNotFoundError, match=r"gone\.txt"):
        read_words(dataset)
    with pytest.raises(TypeError, match=r"set_filelist: 'a\.txt', expected a list"):
        dataset.set_filelist("a.txt")


def test_shuffles_differ_from_each_other_and_are_the_same_again(files: list[str]) -> None:
    def shuffle(*names: str) -> list[list[int]]:
        found = []
        with static.program_guard(static.Program(), static.Program()):
            dataset = make_dataset(InMemoryDataset, files)
        dataset.preload_into_memory(2)
        dataset.wait_preload_done()
        for name in names:
            getattr(dataset, name)()
            found.append(list(itertools.chain.from_iterable(read_words(dataset))))
        return found

    first = shuffle("local_shuffle", "local_shuffle", "global_shuffle")
    assert all(sorted(one) == list(range(10)) for one in first)
    assert len({tuple(one) for one in first}) == 3
    assert shuffle("local_shuffle", "local_shuffle", "global_shuffle") == first


def test_memory_is_released(files: list[str]) -> None:
    dataset = make_dataset(InMemoryDataset, files)
    dataset.load_into_memory(is_shuffle=True)
    dataset.update_settings(batch_size=10)
    assert [sorted(one) for one in read_words(dataset)] == [list(range(10))]
    dataset.release_memory()
    assert dataset.get_memory_data_size() == dataset.get_shuffle_data_size() == 0
    with pytest.raises(RuntimeError, match="call load_into_memory"):
        read_words(dataset)


def make_training(dataset: QueueDataset) -> tuple[static.Executor, Any]:
    """Return an executor and the mean of a table's rows, which SGD reduces."""
    [word] = dataset.get_settings().use_var
    loss = paddle.mean(static.nn.embedding(word, [10, 1], param_attr=Constant(1.0)))
    paddle.optimizer.SGD(1.0).minimize(loss)
    return run_startup(), loss


def test_executor_trains_and_prints(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    dataset = make_dataset(QueueDataset, files)
    executor, loss = make_training(dataset)
    main = static.default_main_program()
    for kind in ("infer", "train", "infer"):
        run = getattr(executor, f"{kind}_from_dataset")
        assert run(main, dataset, fetch_list=[loss], fetch_info=["loss"], print_period=2) is None
    printed = capsys.readouterr().out.splitlines()
    assert [re.sub(r"^time: \[[-0-9: ]+\], ", "", line) for line in printed] == [
        "batch: [2], loss[1]:[1]",
        "batch: [2], loss[1]:[1]",
        "batch: [2], loss[1]:[0.75]",
    ]
    executor.train_from_dataset(main, dataset, debug=True)
    assert re.fullmatch(r"Executor.train_from_dataset: 3 batches in [0-9.]+ s\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"dataset": None}, "dataset=None, expected a QueueDataset or an InMemoryDataset"),
        ({"program": 5}, "Executor.train_from_dataset: program=5, expected a static.Program"),
        ({"program": static.Program()}, "Executor.train_from_dataset: use_var: .*no value 'word'"),
        ({"fetch_handler": print}, "fetch_handler is not in this runtime"),
        ({"fetch_list": ["word"], "fetch_info": []}, "expected a text for each of 1 fetches"),
        ({"print_period": 0}, "and a number from 1"),
    ],
)
def test_wrong_arguments_of_a_pass_are_named(files: list[str], arguments: dict[str, Any], error: str) -> None:
    given = {"dataset": make_dataset(QueueDataset, files)} | arguments
    with pytest.raises((TypeError, ValueError), match=error):
        static.Executor().train_from_dataset(**given)


def test_error_of_a_pass_ends_its_commands(files: list[str], tmp_path: Path) -> None:
    command = f"sh -c 'yes 1 50 | head; sleep 60; touch {tmp_path}/end'"
    dataset = make_dataset(QueueDataset, files, pipe_command=command)
    executor, _ = make_training(dataset)
    with pytest.raises(ValueError, match="has the id 50, expected 0 to 9"):
        executor.train_from_dataset(dataset=dataset)
    assert not (tmp_path / "end").exists()


def test_inference_keeps_its_compiled_program_until_the_program_grows(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = make_dataset(QueueDataset, files)
    executor, loss = make_training(dataset)
    main = static.default_main_program()
    kept = []
    for grows in (False, False, True):
        fetch = paddle.mean(loss) if grows else loss
        executor.infer_from_dataset(main, dataset, fetch_list=[fetch], print_period=3, debug=True)
        assert main.test_program is not None
        kept.append(main.test_program.session)
    assert kept[0] is kept[1] is not kept[2]
    assert len(re.findall(r"^Executor.infer_from_dataset: 3 batches", capsys.readouterr().out, re.M)) == 3
    with pytest.raises(TypeError, match=r"^Executor.infer_from_dataset: dataset=None"):
        executor.infer_from_dataset(main)


def test_error_of_a_file_ends_the_pass(files: list[str], tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("1 5\n1 10\n1 word\n")
    dataset = make_dataset(QueueDataset, [files[0], str(tmp_path / "d.txt")])
    executor, _ = make_training(dataset)
    with pytest.raises(
        ValueError, match=r"d\.txt:3: slot word has the value 'word', expected a whole number"
    ):
        executor.train_from_dataset(dataset=dataset)
