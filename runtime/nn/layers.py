"""Layers as objects: a call adds operations to the default main program. Its calls share parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..param_config import ParamConfig
from ..static.attr import Attr, make_param
from ..static.nn import look_up
from ..static.program import Variable, add_to_main, add_value, make_unique_name, parse_dtype
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


class Linear(Layer):
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
        own = self._full_name
        self.weight = make_param(weight_attr, f"{own}.w_0", (in_features, out_features), is_bias=False)
        self.bias = None
        if bias_attr is not False:
            self.bias = make_param(bias_attr, f"{own}.b_0", (out_features,), is_bias=True)

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        (x,) = inputs
        if isinstance(x, Variable) and x.shape[-1:] != (self.weight.rows,):
            raise ValueError(
                f"{self._full_name}: input {x.name} {list(x.shape)}, expected {self.weight.rows} last"
            )
        params = [self.weight] if self.bias is None else [self.weight, self.bias]
        keeps = len(x.shape) - 1 if isinstance(x, Variable) else 1
        name = f"{make_unique_name(self._full_name)}.tmp_0"
        return add_value("fc", [x], {"keeps": keeps, "size": self.weight.cols}, params, name=name)


class Embedding(Layer):
    """The table row of each id. `sparse`: only the rows of a batch are fetched and updated."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        sparse: bool = False,
        weight_attr: Attr = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        shape = num_embeddings, embedding_dim
        self._padding = padding_idx
        self.weight = make_param(weight_attr, f"{self._full_name}.w_0", shape, is_bias=False, sparse=sparse)

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        (x,) = inputs
        return look_up(x, self.weight, self._padding, self._full_name)


class Dropout(Layer):
    """Zeros for a share p of the values in a training step."""

    def __init__(
        self, p: float = 0.5, axis: None = None, mode: str = "upscale_in_train", name: str | None = None
    ) -> None:
        super().__init__(name)
        self._options: dict[str, Any] = {"p": p, "axis": axis, "mode": mode}

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        (x,) = inputs
        return functional.dropout(x, training=self.training, **self._options)


class _Cost(Layer):
    """A cost of nn.functional with fixed options."""

    compute: str  # its name there; not the function, which may not be imported yet

    def __init__(self, name: str | None, **options: Any) -> None:
        super().__init__(name)
        self._options = options

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        cost: Variable = getattr(functional, self.compute)(*inputs, **{**self._options, **options})
        return cost


class BCELoss(_Cost):
    """nn.functional.binary_cross_entropy."""

    compute = "binary_cross_entropy"

    def __init__(
        self, weight: None = None, reduction: functional.Reduction = "mean", name: str | None = None
    ) -> None:
        super().__init__(name, weight=weight, reduction=reduction)


class BCEWithLogitsLoss(_Cost):
    """nn.functional.binary_cross_entropy_with_logits."""

    compute = "binary_cross_entropy_with_logits"

    def __init__(
        self,
        weight: None = None,
        reduction: functional.Reduction = "mean",
        pos_weight: None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name, weight=weight, reduction=reduction, pos_weight=pos_weight)


class CrossEntropyLoss(_Cost):
    """nn.functional.cross_entropy."""

    compute = "cross_entropy"

    def __init__(
        self,
        weight: None = None,
        ignore_index: int = -100,
        reduction: functional.Reduction = "mean",
        soft_label: bool = False,
        axis: int = -1,
        use_softmax: bool = True,
        label_smoothing: float = 0.0,
        name: str | None = None,
    ) -> None:
        super().__init__(
            name,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            soft_label=soft_label,
            axis=axis,
            use_softmax=use_softmax,
            label_smoothing=label_smoothing,
        )


class HSigmoidLoss(Layer):
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
        self._classes, own = num_classes, self._full_name
        rows = num_classes if is_custom else num_classes - 1
        if rows < 1:
            raise ValueError(f"{own}: num_classes={num_classes}, expected at least {2 - is_custom}")
        self.weight = make_param(weight_attr, f"{own}.w_0", (rows, feature_size), is_bias=False)
        self.bias = None
        if bias_attr is not False:
            self.bias = make_param(bias_attr, f"{own}.b_0", (rows, 1), is_bias=True)

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        input, label, *path = inputs
        parameters = self._classes, self.weight, self.bias
        return functional.hsigmoid_loss(input, label, *parameters, *path, **options)


class ReLU(Layer):
    """max(x, 0)."""

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        (x,) = inputs
        return functional.relu(x)


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        (x,) = inputs
        return functional.sigmoid(x)


class Tanh(Layer):
    """tanh(x)."""

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        (x,) = inputs
        return functional.tanh(x)


class Softmax(Layer):
    """exp(x) divided by its sum over the last axis."""

    def forward(self, *inputs: Any, **options: Any) -> Variable:
        (x,) = inputs
        return functional.softmax(x)


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

    def forward(self, *inputs: Any, **options: Any) -> Any:
        (x,) = inputs
        for layer in self:
            x = layer(x)
        return x
