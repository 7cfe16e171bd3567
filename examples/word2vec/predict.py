"""Says which words the trained model expects next.

    python predict.py [WORKSPACE] [WORD...]

It needs only what a user of the model has: the program, the dictionary and `output/`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

import pslaunch.runtime as paddle


def main() -> None:
    """Print the five likeliest next words after the given ones, by the model in a workspace."""
    given = sys.argv[1:]
    here = Path(__file__).resolve().parent
    workspace = Path(given.pop(0)) if given and Path(given[0]).is_dir() else here / "ws"
    os.chdir(workspace)
    sys.path.insert(0, str(Path.cwd()))
    import train

    words = given or ["it", "is", "possible"]
    word_dict = train.load_word_dict()
    unknown = [word for word in words if word not in word_dict]
    if unknown:
        raise SystemExit(f"not in word_dict.pickle: {', '.join(unknown)}")
    paddle.init()
    cost = train.build_network(len(word_dict))
    with Path("output/parameters.tar").open("rb") as file:
        parameters = paddle.parameters.Parameters.from_tar(file)
    context = tuple(word_dict[word] for word in ["<s>", "<s>", "<s>", "<s>", *words][-4:])
    (found,) = paddle.infer(output_layer=cost.inputs[0], parameters=parameters, input=[context])
    by_id = {i: word for word, i in word_dict.items()}
    for i in np.argsort(-found, kind="stable")[:5]:
        print(f"{found[i]:6.1%}  {' '.join(words)} {by_id[int(i)]}")


if __name__ == "__main__":
    main()
