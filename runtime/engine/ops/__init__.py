"""Operations of programs: one class for each kind, in files by family, found by their names in `OPS`."""

from . import conv, cost, dense, elementwise, index, lookup, metric, norm, recurrent, sampled, sequence
from .base import OPS, Draw, Form, Op, Step, find_form, find_params, give_form, make_value

__all__ = ["OPS", "Draw", "Form", "Op", "Step", "find_form", "find_params", "give_form", "make_value"]
__all__ += ["conv", "cost", "dense", "elementwise", "index", "lookup", "metric", "norm", "recurrent"]
__all__ += ["sampled", "sequence"]
