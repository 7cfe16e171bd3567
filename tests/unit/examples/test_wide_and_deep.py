"""examples/wide_and_deep: its data have Criteo's form and something to learn, and are read as samples."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from make_data import DENSE, SPARSE, Truth, draw_ids, draw_numbers, make_data, make_lines
from reader import HASH_SIZE, list_files, make_reader, read_line

LINE = re.compile(rf"[01](\t\d*){{{DENSE}}}(\t([0-9a-f]{{8}})?){{{SPARSE}}}\n")


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files by their names."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_lines_have_criteos_form() -> None:
    for line in make_lines(1, 0, 50):
        assert LINE.fullmatch(line), line


def test_the_same_arguments_give_the_same_files(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_data(tmp_path / name, lines=50, split_count=3, seed=seed)
    one, same, other = (read_folder(tmp_path / name) for name in "abc")
    assert one == same
    assert one != other
    assert sorted(one) == ["test/part-00000", *(f"train/part-0000{i}" for i in range(3))]
    assert len(set(one.values())) == 4
    assert [one[name].count(b"\n") for name in sorted(one)] == [5, 16, 17, 17]


def test_files_of_an_earlier_call_are_replaced(tmp_path: Path) -> None:
    make_data(tmp_path, lines=9, split_count=3, seed=1)
    make_data(tmp_path, lines=9, split_count=1, seed=1)
    assert sorted(read_folder(tmp_path)) == ["test/part-00000", "train/part-00000"]


def test_a_click_depends_on_numbers_categories_and_pairs() -> None:
    rng, truth = np.random.default_rng(1), Truth(1)
    numbers, ids = draw_numbers(rng, 2000), draw_ids(rng, 2000)
    chances = truth.compute_chances(numbers, ids)
    clicks = rng.random(2000) < chances
    assert 0.1 < clicks.mean() < 0.5
    assert chances[clicks].mean() > chances[~clicks].mean() + 0.3
    nothing = truth.compute_chances(np.full((1, DENSE), np.nan), np.full((1, SPARSE), -1))
    assert 0.2 < float(nothing[0]) < 0.3  # the bias alone


def test_few_categories_are_most_of_a_column() -> None:
    ids = draw_ids(np.random.default_rng(1), 20_000)[:, -1]
    _, counts = np.unique(ids[ids >= 0], return_counts=True)
    assert len(counts) > 3000
    assert np.sort(counts)[-10:].sum() > 0.4 * len(ids)


def test_a_line_is_read_as_numbers_ids_and_label() -> None:
    fields = ["1", "20", "", "50", *["0"] * 10, "00ab", "00ab", *[""] * 24]
    numbers, *ids, label = read_line("\t".join(fields) + "\n")
    assert numbers[:4] == [1.0, 0.0, 0.5, 0.0]
    assert len(numbers) == DENSE
    assert label == [1]
    assert len(ids) == SPARSE
    assert all(0 <= one < HASH_SIZE for (one,) in ids)
    assert ids[0] != ids[1]  # a column has categories of its own
    assert ids == read_line("\t".join(fields))[1:-1]


def test_a_line_with_other_fields_is_shown() -> None:
    with pytest.raises(ValueError, match=r"a line has 3 fields, expected 40: '1\\t2\\t3"):
        read_line("1\t2\t3\n")


def test_samples_come_from_all_files_in_order(tmp_path: Path) -> None:
    make_data(tmp_path, lines=20, split_count=2, seed=1)
    files = list_files(tmp_path / "train")
    assert [Path(name).name for name in files] == ["part-00000", "part-00001"]
    expected = [read_line(line) for name in files for line in Path(name).read_text().splitlines()]
    assert [*make_reader(files)()] == expected
    with pytest.raises(ValueError, match=r"make_data\.py makes some"):
        list_files(tmp_path)
