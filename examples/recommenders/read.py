"""Writes lines of the standard input as text of slots, by the reader of a model: a dataset's pipe_command.

python read.py -m din/config.yaml < data/amazon/part-00000
"""

from __future__ import annotations

from config import load_module, parse_arguments


def main() -> None:
    """Read all lines."""
    config, options = parse_arguments(__doc__)
    reader = load_module(options.model.parent, config["runner.reader"]).Reader()
    reader.init(config)
    reader.run_from_stdin()


if __name__ == "__main__":
    main()
