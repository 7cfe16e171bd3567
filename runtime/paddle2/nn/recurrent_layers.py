"""Layers of LSTM and GRU, by PaddlePaddle 2's names."""

from __future__ import annotations

from typing import Any, ClassVar

from ...engine.param_config import ParamConfig
from ..program import tensor
from ..program.initializer import Uniform
from ..program.param_attr import Attr, make_param
from ..program.program import Variable, add_value, make_unique_name
from .layers import Layer


class LSTM(Layer):
    """Layers of cells over [batch, time, input_size], or over sequences of vectors.

    A call returns the states of all items, [.., hidden_size], of both directions one after the other, and
    a list of the last states, [batch, hidden_size], of each layer and direction.
    """

    op, parts, own = "lstm", 4, "lstm_cell"
    attrs: ClassVar[dict[str, Any]] = {"order": "ifgo", "peeps": False}

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        weight_ih_attr: Attr = None,
        weight_hh_attr: Attr = None,
        bias_ih_attr: Attr = None,
        bias_hh_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        if time_major or dropout or direction not in ("forward", "bidirect", "bidirectional"):
            raise ValueError(
                f"{self._full_name}: expected time_major=False, dropout=0.0, 'forward' or 'bidirect'"
            )
        self._size, self._ways = hidden_size, 1 if direction == "forward" else 2
        whole, usual = self.parts * hidden_size, Uniform(-(hidden_size**-0.5), hidden_size**-0.5)
        self._cells = []
        for layer in range(num_layers):
            for _ in range(self._ways):
                size = input_size if layer == 0 else hidden_size * self._ways
                shapes = [(whole, size), (whole, hidden_size), (whole,), (whole,)]
                attrs = [weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr]
                name, cell = make_unique_name(self.own), []
                for end, attr, shape in zip(("w_0", "w_1", "b_0", "b_1"), attrs, shapes, strict=True):
                    is_bias = end.startswith("b")
                    cell.append(
                        make_param(attr or None, f"{name}.{end}", shape, is_bias=is_bias, usual=usual)
                    )
                self._cells.append(cell)

    def parameters(self, include_sublayers: bool = True) -> list[ParamConfig]:
        """Return the parameters of all cells."""
        return [config for cell in self._cells for config in cell]

    def forward(self, x: Variable) -> tuple[Variable, list[Variable]]:
        ends, parts = [], []
        for i, cell in enumerate(self._cells):
            weight, hidden, bias, hidden_bias = cell
            products = tensor.matmul(x, self._read(weight, (weight.rows, weight.cols)), transpose_y=True)
            attrs = {**self.attrs, "reverse": bool(i % self._ways), "size": self._size, "swaps": True}
            values = products + self._read(bias, (bias.cols,))
            out = add_value(self.op, [values], attrs, [hidden, hidden_bias])
            if out.is_sequence:
                ends.append(add_value("pool", [out], {"by": "first" if attrs["reverse"] else "last"}))
            else:
                ends.append(out[:, 0 if attrs["reverse"] else -1])
            parts.append(out)
            if len(parts) == self._ways:
                x, parts = tensor.concat(parts, axis=-1) if self._ways > 1 else out, []
        return x, ends


class GRU(LSTM):
    """As LSTM, of cells with two gates."""

    op, parts, own = "gru", 3, "gru_cell"
    attrs: ClassVar[dict[str, Any]] = {}
