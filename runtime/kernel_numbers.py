"""Numbers of optimizers and distributions in the compiled core: csrc/ps_optim.h, csrc/ps_init.h."""

from __future__ import annotations

from typing import Literal

Method = Literal["sgd", "momentum", "adagrad"]
METHODS: dict[Method, int] = {"sgd": 0, "momentum": 1, "adagrad": 2}
InitialKind = Literal["normal", "uniform"]
KINDS: dict[InitialKind, int] = {"normal": 0, "uniform": 1}
