"""Layers as objects: a call adds operations to the default main program. Its calls share parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

from ...engine.entry import ANY, EntryAttr
from ...engine.param_config import ParamConfig
from ..program.initializer import Constant
from ..program.param_attr import Attr, make_param
from ..program.program import Variable, add_to_main, add_value, make_unique_name, parse_dtype
from ..program.tensor import look_up
from . import functional


class Layer:
    """Base of all layers: a subclass defines `forward`, and its objects are called."""

    training = True
    forward: Callable[..., Any]  # defined by each subclass

    def __init__(self, name_scope: str | None = None, dtype: str = "float32") -> None:
        self._full_name = make_unique_name(name_scope or type(self).__name__.lower())

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.forward(*inputs, **options)

    def full_name(self) -> str:
        """Return the unique name of the layer."""
        return self._full_name

    def add_sublayer(self, name: str, sublayer: Layer) -> Layer:
        """Set a layer as an attribute, and return it."""
        if not isinstance(sublayer, Layer):
            raise TypeError(f"{self._full_name}.add_sublayer({name!r}): {sublayer!r} is not a layer")
        setattr(self, name, sublayer)
        return sublayer

    def sublayers(self, include_self: bool = False) -> list[Layer]:
        """Return all layers that are attributes, and those of theirs."""
        found: dict[Layer, None] = {self: None} if include_self else {}
        for value in vars(self).values():
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, Layer):
                    found.update(dict.fromkeys([one, *one.sublayers()]))
        return list(found)

    def parameters(self, include_sublayers: bool = True) -> list[ParamConfig]:
        """Return the parameters of the layer and its sublayers."""
        layers = self.sublayers(include_self=True) if include_sublayers else [self]
        found = [
            value for layer in layers for value in vars(layer).values() if isinstance(value, ParamConfig)
        ]
        return list({config.name: config for config in found}.values())

    def create_parameter(
        self,
        shape: Sequence[int],
        attr: Attr = None,
        dtype: object = None,
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Variable:
        """Return a new parameter as a variable of the default main program."""
        return create_parameter(shape, dtype or "float32", None, attr, is_bias, default_initializer)

    def train(self) -> None:
        """Let a later call add the operations of training, as dropout."""
        self._set_training(True)

    def eval(self) -> None:
        """Let a later call add no operations of training."""
        self._set_training(False)

    def _set_training(self, value: bool) -> None:
        for layer in self.sublayers(include_self=True):
            layer.training = value

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError(
            f"layer {self._full_name} of a static program has no values: there is no imperative mode here; "
            "static.save and static.load write and read those of a program"
        )

    state_dict = set_state_dict = set_dict = to = _refuse

    def _make(self, end: str, attr: Attr, shape: Sequence[int | None], **options: Any) -> ParamConfig:
        """Return a parameter; its name ends in w_0 and so on, of a bias in b_0."""
        return make_param(attr, f"{self._full_name}.{end}", shape, is_bias=end.startswith("b"), **options)

    def _read(self, config: ParamConfig, shape: Sequence[int]) -> Variable:
        """Return a parameter as a value of this shape."""
        name = f"{make_unique_name(self._full_name)}.tmp_0"
        return add_to_main(Variable(name=name, op="parameter", shape=tuple(shape), params=(config,)))


class WeightLayer(Layer):
    """Base of layers with a weight, and a bias unless its attribute is False."""

    weight: ParamConfig
    bias: ParamConfig | None

    def _make_params(
        self, weight: Attr, shape: Sequence[int], bias: Attr, bias_shape: Sequence[int], **usual: Any
    ) -> None:
        self.weight = self._make("w_0", weight, shape, **usual)
        self.bias = None if bias is False else self._make("b_0", bias, bias_shape)

    def _add(self, op: str, x: Variable, *more: ParamConfig, **attrs: Any) -> Variable:
        """Add an operation with weight, bias and `more` to the default main program."""
        params = [one for one in (self.weight, self.bias, *more) if one is not None]
        return add_value(op, [x], attrs, params, name=f"{make_unique_name(self._full_name)}.tmp_0")


def create_parameter(
    shape: Sequence[int],
    dtype: object,
    name: str | None = None,
    attr: Attr = None,
    is_bias: bool = False,
    default_initializer: Any = None,
) -> Variable:
    """Return a parameter as a variable of the default main program."""
    own = name or f"{make_unique_name('parameter')}.w_0"
    if parse_dtype(dtype, own) != "float":
        raise ValueError(f"{own}: dtype={dtype!r}, expected float32")
    config = make_param(default_initializer if attr is None else attr, own, shape, is_bias=is_bias)
    return add_to_main(Variable(name=config.name, op="parameter", shape=tuple(shape), params=(config,)))


class Linear(WeightLayer):
    """x W + b."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._make_params(weight_attr, (in_features, out_features), bias_attr, (out_features,))

    def forward(self, x: Any) -> Variable:
        keeps = len(x.shape) - 1 if isinstance(x, Variable) else 1
        return self._add("fc", x, keeps=keeps, size=self.weight.cols)


class Embedding(Layer):
    """The table row of each id, of any with num_embeddings None.

    `sparse`: only the rows of a batch are fetched and updated.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        weight_attr: Attr = None,
        name: str | None = None,
        *,
        entry: EntryAttr = ANY,
    ) -> None:
        super().__init__(name)
        self._padding, shape = padding_idx, (num_embeddings, embedding_dim)
        self.weight = self._make("w_0", weight_attr, shape, sparse=sparse, entry=entry)

    def forward(self, x: Variable) -> Variable:
        return look_up(x, self.weight, self._padding, self._full_name)


class Call(Layer):
    """A function of nn.functional as a layer: its arguments without defaults are inputs of a call."""

    function: ClassVar[Callable[..., Variable]]
    takes: ClassVar[inspect.Signature]

    def __init__(self, *args: Any, **options: Any) -> None:
        try:
            self._options = self.takes.bind(*args, **options).arguments
        except TypeError as e:
            raise TypeError(f"nn.{type(self).__name__}: {e}") from None
        super().__init__(self._options.pop("name", None))

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        training = {"training": self.training} if type(self).function is functional.dropout else {}
        return type(self).function(*inputs, **{**self._options, **training, **options})


def make_layer(name: str, function: Callable[..., Variable]) -> type[Call]:
    """Make the class of a layer that calls a function with the options of its constructor."""
    every = inspect.signature(function).parameters.values()
    own = [one for one in every if one.default is not one.empty and one.name not in ("training", "dtype")]
    takes = inspect.Signature(own)
    body = {"function": staticmethod(function), "takes": takes, "__signature__": takes}
    body |= {"__doc__": f"nn.functional.{function.__name__} as a layer.", "__module__": __package__}
    return type(name, (Call,), body)


class PReLU(Layer):
    """x above 0, else x times a learned weight, one or that of each channel."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        weight_attr: Attr = None,
        data_format: str = "NCHW",
        name: str | None = None,
    ) -> None:
        super().__init__(name or "p_re_lu")
        self._channels_last = data_format.endswith("C")
        self.weight = self._make("w_0", weight_attr, (num_parameters,), usual=Constant(init))

    def forward(self, x: Variable) -> Variable:
        after = 0 if self._channels_last or self.weight.cols == 1 else len(x.shape) - 2
        return functional.prelu(x, self._read(self.weight, (self.weight.cols, *[1] * after)))


class HSigmoidLoss(WeightLayer):
    """nn.functional.hsigmoid_loss with its parameters. `is_custom`: calls give the paths of the labels."""

    def __init__(
        self,
        feature_size: int,
        num_classes: int,
        weight_attr: Attr = None,
        bias_attr: Attr = None,
        is_custom: bool = False,
        is_sparse: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self._classes = num_classes
        rows = num_classes if is_custom else num_classes - 1
        if rows < 1:
            least = 2 - is_custom
            raise ValueError(f"{self._full_name}: num_classes={num_classes}, expected at least {least}")
        self._make_params(weight_attr, (rows, feature_size), bias_attr, (rows, 1))

    def forward(self, input: Variable, label: Variable, *path: Variable, **options: Any) -> Variable:
        parameters = self._classes, self.weight, self.bias
        return functional.hsigmoid_loss(input, label, *parameters, *path, **options)


class LayerList(Layer):
    """A list of layers."""

    def __init__(self, sublayers: Iterable[Layer] = ()) -> None:
        super().__init__()
        self._layers = list(sublayers)

    def append(self, sublayer: Layer) -> LayerList:
        """Add a layer at the end."""
        self._layers.append(sublayer)
        return self

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._layers)

    def __getitem__(self, index: int) -> Layer:
        return self._layers[index]

    def __len__(self) -> int:
        return len(self._layers)


class Sequential(LayerList):
    """Layers one after the other."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__(layers)

    def forward(self, x: Any) -> Any:
        for layer in self:
            x = layer(x)
        return x
