"""Shows what the trained model learned: perplexity, words near each other, words that it expects next.

    python report.py [WORKSPACE]

It reads the parameters that the job left in the workspace and computes with numpy alone, so that it
is also a second opinion on the runtime.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import pslaunch.runtime as paddle

F32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

WORDS = ("may", "is", "returns", "created", "objects", "until", "in", "they")
STARTS = ("can be used", "if the file does", "it is possible", "an object that", "raises an exception if")
UNKNOWN = "<unk>"
SHOWN = {"<e>": "(end)", "<s>": "(start)"}


def predict(parameters: Mapping[str, F32], contexts: Ids, *, drop: float) -> F32:
    """Of each word of the dictionary to be the next one: contexts [n, 4] -> [n, words].

    Where training dropped values of the hidden layer, all of them count here, with `1 - drop`.
    """
    embedded = parameters["_proj"][contexts].reshape(len(contexts), -1)
    hidden = (1 - drop) / (1 + np.exp(-(embedded @ parameters["hidden"] + parameters["hidden_bias"].ravel())))
    scores: F32 = hidden @ parameters["next"] + parameters["next_bias"].ravel()
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: F32 = scores / scores.sum(axis=1, keepdims=True)
    return shares


def compute_perplexity(parameters: Mapping[str, F32], samples: Ids, *, drop: float) -> float:
    """Of 5-grams [n, 5]: how many words the model hesitates between, on average."""
    logs = []
    for part in np.array_split(samples, len(samples) // 1024 + 1):
        found = predict(parameters, part[:, :4], drop=drop)
        logs.append(np.log(found[np.arange(len(part)), part[:, 4]].astype(np.float64)))
    return float(np.exp(-np.concatenate(logs).mean()))


def compute_unigram_perplexity(train: Ids, test: Ids, words: int) -> float:
    """Perplexity when a word is guessed by how often it occurs in training (one added), context ignored."""
    counts = np.bincount(train[:, 4], minlength=words) + 1.0
    return float(np.exp(-np.log(counts / counts.sum())[test[:, 4]].mean()))


def find_nearest(table: F32, word: int, count: int) -> list[int]:
    """The `count` other rows of `table` [n, dim] that point most in the direction of row `word`."""
    unit = table / np.linalg.norm(table, axis=1, keepdims=True).clip(1e-12)
    order = np.argsort(-(unit @ unit[word]), kind="stable")
    return [int(i) for i in order if i != word][:count]


def select_known(texts: Sequence[str], word_dict: Mapping[str, int]) -> list[str]:
    """Those of `texts` whose words are all in the dictionary; other words of it where none is."""
    found = [text for text in texts if all(word in word_dict for word in text.split())]
    if found:
        return found
    by_id = {i: word for word, i in word_dict.items()}
    length = len(texts[0].split())
    return [" ".join(by_id[i + k] for k in range(length)) for i in range(20, min(100, len(by_id) - 4), 20)]


def print_neighbours(table: F32, word_dict: Mapping[str, int]) -> None:
    """Print which words are near which."""
    by_id = {i: SHOWN.get(word, word) for word, i in word_dict.items()}
    print("\nNearest words, by the direction of their embeddings:")
    for word in select_known(WORDS, word_dict):
        print(f"  {word:10} {', '.join(by_id[i] for i in find_nearest(table, word_dict[word], 6))}")


def print_next_words(parameters: Mapping[str, F32], word_dict: Mapping[str, int], *, drop: float) -> None:
    """Print which words are expected next."""
    by_id = {i: SHOWN.get(word, word) for word, i in word_dict.items()}
    print("\nExpected next, with probabilities:")
    for start in select_known(STARTS, word_dict):
        ids = [word_dict["<s>"], *(word_dict[word] for word in start.split())][-4:]
        found = predict(parameters, np.array([ids]), drop=drop)[0]
        found[word_dict[UNKNOWN]] = 0
        best = np.argsort(-found, kind="stable")[:5]
        print(f"  {start:22} … {', '.join(f'{by_id[int(i)]} {found[i]:.0%}' for i in best)}")


def load(path: Path) -> dict[str, F32]:
    """Parameters by name from the file that the job wrote."""
    with path.open("rb") as file:
        parameters = paddle.parameters.Parameters.from_tar(file)
    return {name: parameters.get(name) for name in parameters.names()}


def main() -> None:
    """Report on one workspace."""
    here = Path(__file__).resolve().parent
    workspace = Path(sys.argv[1] if len(sys.argv) > 1 else here / "ws").resolve()
    os.chdir(workspace)
    sys.path.insert(0, str(workspace))
    import my_lib
    import train

    paddle.init()
    word_dict = train.load_word_dict()
    grams = {}
    for name in ("train", "test"):
        text = my_lib.find_data_folder(name) / f"{name}.txt"
        grams[name] = np.loadtxt(text, delimiter=",", dtype=np.int64, ndmin=2)
    fresh = paddle.parameters.create(train.build_network(len(word_dict)))
    before = {name: fresh.get(name) for name in fresh.names()}
    model = max(Path("output").rglob("*.tar"), key=lambda path: path.stat().st_mtime)
    after = load(model)

    print("\nPerplexity of text that was not trained on (lower is better):")
    print(f"  before training             {compute_perplexity(before, grams['test'], drop=train.DROP):8.1f}")
    unigram = compute_unigram_perplexity(grams["train"], grams["test"], len(word_dict))
    print(f"  word frequencies (unigram)  {unigram:8.1f}")
    print(f"  after training              {compute_perplexity(after, grams['test'], drop=train.DROP):8.1f}")
    print_neighbours(after["_proj"], word_dict)
    print_next_words(after, word_dict, drop=train.DROP)
    print(f"\nModel: {model.resolve()}\nLogs:  {workspace / 'log'}/")


if __name__ == "__main__":
    main()
