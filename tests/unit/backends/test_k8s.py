"""Answers from pods that are cut and asked for again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pslaunch.backends.k8s import Given, from_data, to_data
from pslaunch.errors import FileError, HostError, SpecError
from pslaunch.options.k8s_spec import Access, K8sReach
from pslaunch.options.k8s_values import SecretKey


def answer(pieces: Sequence[bytes], cut: int | None = None) -> Iterator[bytes]:
    yield from pieces[:cut]
    if cut is not None:
        raise HostError("pod", "pack", "cut off")


@given(
    pieces=st.lists(st.binary(max_size=9), max_size=6),
    again=st.integers(1, 7),
    cuts=st.lists(st.integers(0, 6), max_size=5),
)
def test_cut_answer_goes_on_with_the_next_byte(pieces: list[bytes], again: int, cuts: list[int]) -> None:
    whole, told, passed = b"".join(pieces), b"", Given()
    for cut in cuts:
        with pytest.raises(HostError):
            for piece in passed.skip(answer(pieces, cut)):
                told += piece
    others = [whole[at : at + again] for at in range(0, len(whole), again)]  # in other pieces
    assert told + b"".join(passed.skip(answer(others))) == whole


@pytest.mark.parametrize("other", [[b"abX", b"d"], [b"ab"], []])
def test_another_answer_is_refused(other: list[bytes]) -> None:
    passed = Given()
    with pytest.raises(HostError):
        list(passed.skip(answer([b"ab", b"c", b"d"], 2)))
    with pytest.raises(FileError, match="changed"):
        list(passed.skip(answer(other)))


def test_reach_survives_its_record() -> None:
    reach = K8sReach(
        "word2vec-1a2b3c",
        "image",
        claims=(("data", "/data"),),
        access=Access("", "here", "team"),
        env_secrets={"TOKEN": SecretKey("tokens", "own")},
        tolerations=({"key": "gpu"},),
    )
    assert from_data(to_data(reach)) == reach


@pytest.mark.parametrize("data", [None, {"name": "word2vec"}, {"claims": [], "access": {"unknown": 1}}])
def test_record_of_another_version_is_refused(data: object) -> None:
    with pytest.raises(SpecError, match="another version"):
        from_data(data)
