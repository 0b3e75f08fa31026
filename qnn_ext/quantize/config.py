"""QConfig: all settings for quantizing a float model, and what they mean for one layer.

The first 17 fields are those of Relay's quantize, under the same names; Relay had nothing like the others. Defaults are
chosen for accuracy; `QConfig.relay()` has Relay's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ContextDecorator
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from ..errors import QuantizationError
from ..scopes import Scopes
from .fields import FLOAT_FUNCTIONS, LAYER_FIELDS, by_groups, check_fields


@dataclass(frozen=True)
class LayerConfig:
    """What a QConfig means for one layer: skips, first and last layer, overrides and "auto" resolved.

    precision: "int8", "int16" (the layer's activations have 16 bits, symmetric, its weights at most 8), "bfloat16" or
               "float16" (its operands are rounded, sums stay float32), or "float32"; the other fields matter only
               for integers
    dtype_input ("int8" or "uint8") and symmetric are those of activations; weights are symmetric unless they are in
    groups and weight_symmetric is False
    range:     (low, high) of the layer's data input if the user fixed it
    group_size: of weights in groups; None: a group for each row
    """

    name: str
    operator: str
    precision: str
    nbit_input: int
    nbit_weight: int
    nbit_activation: int
    dtype_input: str
    dtype_weight: str
    dtype_activation: str
    per_channel: bool
    symmetric: bool
    calibrate_mode: str
    percentile: float
    weight_scale: str
    weight_symmetric: bool = True
    group_size: int | None = None
    range: tuple[float, float] | None = None

    @property
    def quantized(self) -> bool:
        """Whether the layer computes with integers."""
        return self.precision in ("int8", "int16")


@dataclass(frozen=True)
class QConfig:
    """How a float model is quantized.

    Relay's fields:
    nbit_input, nbit_weight: bits of the operands of integer products, 2 to 8
    nbit_activation: bits of tensors between layers that are no operand of a product (a residual sum): 32 keeps them
                     as accumulators, added in float registers; 2 to 8 quantizes them too, and if dtype_activation
                     equals dtype_input they are added as integers
    dtype_input:     "int8", "uint8", or "auto": what `target` multiplies fastest; int8 if symmetric
    dtype_weight:    "int8"
    dtype_activation: "int32", or "int8" / "uint8" with nbit_activation of at most 8
    calibrate_mode:  how ranges of activations are found: see CALIBRATE_MODES. "auto": "extrapolated", the extremes with
                     room for values that fewer than 64 samples have not shown, unless another calibrator or setting of
                     ONNX Runtime's quantizer (see `alternatives`) keeps the model's outputs better on samples that its
                     ranges do not come from (models with states are not compared); without data "global_scale"
    global_scale:    the threshold of "global_scale": real values −global_scale … global_scale
    weight_scale:    "max": the largest weight; "power2": the next power of two above it; "mse": the threshold with the
                     smallest squared error; "hqq", for weights in groups: half-quadratic quantization
    skip_dense_layer: whether dense layers (matmul with constant weights) stay float
    skip_conv_layers: which convolutions stay float, counted from 0 in order of computation
    do_simulation:   stop before converting to integers: a float module with quantization errors
    round_for_shift: if scales are powers of two and requantize is a shift: whether that rounds (True) or truncates
    debug_enabled_ops: the only operators that may be quantized ("nn.conv2d", "nn.dense", "nn.batch_matmul", "add" …);
                     None: all
    rounding:        of requantize: "TONEAREST_EVEN", "UPWARD" or "TONEAREST"; not for shifts that truncate
    calibrate_chunk_by: how many sites are collected in one pass over the data, −1: all. Fewer take less memory and
                     more passes
    partition_conversions: "enabled" splits `main` into quantize_prefix, integer middle and dequantize_suffix;
                     "fully_integral" also requires that the middle has no float operator

    Further fields:
    per_channel:     one weight scale per output channel
    symmetric:       zero point in the middle, for activations; None: False, except for "cambricon"
    percentile:      share of values inside the range in mode "percentile", in percent
    bins:            number of histogram bins
    momentum:        weight of the old value in "moving_average", 0 ≤ m < 1
    first_layer, last_layer: precision of the first and the last product: see LayerConfig
    overrides:       layer name pattern (fnmatch) → {field: value}, later patterns win: see `fields.LAYER_FIELDS`
    quantization_formula: "google": x = scale · (q − zero_point); "cambricon": x = q · 2^position
    weight_only:     weights become integers in groups, activations stay float: needs no data. Those in loops are
                     rounded to the nearest. A row of a convolution's has all taps and channels of a result; the weights
                     of transposed convolutions and of convolutions in groups stay float
    group_size:      values along a row of a weight that share a scale, the last group of a row may be shorter; None:
                     the row. With `dynamic`, 8-bit activations have a scale for each row instead of one for the tensor
    weight_symmetric: False: weights in groups have zero points
    group_scales:    dtype of the groups' scales: "float32", "float16" or "bfloat16"
    embeddings:      whether matrices that rows are taken from become integers in groups as well
    weight_rounding: "nearest"; "gptq" or "adaround" choose the integers that keep each layer's results on the data;
                     "auto", with calibrate_mode "auto": "gptq" for layers of up to 1024 inputs · taps, where it is
                     clearly better on data it has not seen (see `learned`); for weights in groups, models with
                     states, and data in shards that other machines read, "nearest"
    bias_correction: whether biases compensate the mean error of quantized weights. "auto", with calibrate_mode "auto":
                     as far as that error stands out from the differences between batches (see `bias_correction`);
                     models with states, and data in shards that other machines read, are left as they are
    balance:         factors for the channels of activations, which the weights that read them undo, so that one scale
                     serves all channels (see `balance`). "auto", with calibrate_mode "auto": if that keeps the model's
                     outputs better (see `rescale`)
    equalize:        cross-layer equalization before ranges are taken. "auto": if that is clearly better and
                     channels are not balanced
    smooth:          SmoothQuant's α, above 0 and below 1: how much of the outliers of activations behind normalizations
                     moves into the weights that read them; "awq", for weights in groups: channels whose activations are
                     large get finer weights, as much as keeps the layers' results on the data best; None: nothing
                     moves; "auto": 0.5 if that is clearly better, as for `equalize`
    dynamic:         quantize activations at run time with the actual range of each tensor: needs no data
    target:          as `build` takes it; only decides what dtype_input "auto" means. None: this machine
    float_functions: functions that stay float between integer products: "softmax", "layer_norm" (with what normalizes
                     otherwise, and statistics: see `annotate.normalizations`, `annotate.divisions` and
                     `annotate.statistics`), "gelu" (in registers, after its product), "log" (with the filter bank whose
                     spectrum it reads). Those not listed have their data quantized: gelu becomes a table
    num_workers:     processes that calibrate in parallel

    Raises QuantizationError for values out of range and for fields that contradict each other.
    """

    nbit_input: int = 8
    nbit_weight: int = 8
    nbit_activation: int = 32
    dtype_input: str = "auto"
    dtype_weight: str = "int8"
    dtype_activation: str = "int32"
    calibrate_mode: str = "auto"
    global_scale: float = 8.0
    weight_scale: str = "max"
    skip_dense_layer: bool = False
    skip_conv_layers: Sequence[int] | None = None
    do_simulation: bool = False
    round_for_shift: bool = True
    debug_enabled_ops: Sequence[str] | None = None
    rounding: str = "TONEAREST_EVEN"
    calibrate_chunk_by: int = -1
    partition_conversions: str = "disabled"
    per_channel: bool = True
    symmetric: bool | None = None
    percentile: float = 99.99
    bins: int = 2048
    momentum: float = 0.9
    first_layer: str = "int8"
    last_layer: str = "int8"
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quantization_formula: str = "google"
    weight_only: bool = False
    group_size: int | None = None
    weight_symmetric: bool = True
    group_scales: str = "float32"
    embeddings: bool = False
    weight_rounding: str = "auto"
    bias_correction: bool | str = False
    balance: bool | str = "auto"
    equalize: bool | str = "auto"
    smooth: float | str | None = "auto"
    dynamic: bool = False
    target: Any = None
    float_functions: Sequence[str] = FLOAT_FUNCTIONS
    num_workers: int = 1

    def __post_init__(self) -> None:
        for name in ("skip_conv_layers", "debug_enabled_ops", "float_functions"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, (str, int)):
                object.__setattr__(self, name, tuple(value))
        check_fields({item.name: getattr(self, item.name) for item in fields(self)})

    @classmethod
    def of(cls, **values: Any) -> QConfig:
        """A QConfig from named fields. Raises QuantizationError for unknown names."""
        return replace_fields(cls(), values)

    @classmethod
    def relay(cls, **values: Any) -> QConfig:
        """Relay's own defaults: symmetric per-tensor int8, fixed range ±8, power-of-two weights, dense layers and the
        first convolution in float, rounding upwards; `values` replace some of them."""
        return replace_fields(
            cls(
                dtype_input="int8",
                calibrate_mode="global_scale",
                weight_scale="power2",
                skip_dense_layer=True,
                skip_conv_layers=(0,),
                rounding="UPWARD",
                per_channel=False,
                symmetric=True,
            ),
            values,
        )

    @property
    def power_of_two(self) -> bool:
        """Whether all scales are powers of two."""
        return self.quantization_formula == "cambricon"

    @property
    def grouped(self) -> bool:
        """Whether weights are quantized in groups: weight-only, or with a group_size."""
        return by_groups(vars(self))

    def enabled(self, operator: str) -> bool:
        """Whether debug_enabled_ops allows quantizing the operator; "nn.conv2d" and "conv2d" mean the same."""
        if self.debug_enabled_ops is None:
            return True
        return plain_operator(operator) in {plain_operator(name) for name in self.debug_enabled_ops}

    def layer(
        self,
        name: str,
        operator: str,
        index: int | None = None,
        first: bool = False,
        last: bool = False,
        in_float: bool = False,
    ) -> LayerConfig:
        """What this config means for one layer.

        name, operator: of the layer; "dense" and "batch_matmul" are the operators of a matmul with and without constant
                        weights
        index:          position among the convolutions of the model, counted from 0; None for other operators
        first, last:    whether it is the model's first or last product
        in_float:       whether it belongs to one of the float_functions

        In order of increasing precedence: first_layer and last_layer, float_functions, skip_*, debug_enabled_ops,
        overrides in their order.
        """
        settings = self._settings()
        plain = plain_operator(operator)
        skipped = (plain == "dense" and self.skip_dense_layer) or (
            plain.startswith("conv") and self.skip_conv_layers is not None and index in self.skip_conv_layers
        )
        for policy, holds in ((self.first_layer, first), (self.last_layer, last)):
            if holds and policy != "int8":
                settings["precision"] = policy
        if in_float or skipped or not self.enabled(operator):
            settings["precision"] = "float32"
        for pattern, values in self.overrides.items():
            if fnmatchcase(name, pattern):
                settings.update(values)
        if settings["symmetric"] is None:
            settings["symmetric"] = self.power_of_two
        if settings["dtype_input"] == "auto":
            settings["dtype_input"] = "int8" if settings["symmetric"] else preferred_dtype(self.target)
        return LayerConfig(name=name, operator=operator, **settings)

    def _settings(self) -> dict[str, Any]:
        """The fields of a layer before policies and overrides are applied."""
        settings = {name: getattr(self, name) for name in LAYER_FIELDS if hasattr(self, name)}
        return {**settings, "precision": "int8", "range": None}

    def check_patterns(self, names: Sequence[str]) -> None:
        """Raises QuantizationError when a pattern of `overrides` matches no layer of the model."""
        for pattern in self.overrides:
            if not any(fnmatchcase(name, pattern) for name in names):
                shown = ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
                raise QuantizationError(
                    f"overrides: pattern {pattern!r} matches no layer; this model's layers are {shown or 'none'}"
                )

    def check_convolutions(self, count: int) -> None:
        """Raises QuantizationError when skip_conv_layers names a convolution that a model of `count` does not have."""
        for index in self.skip_conv_layers or ():
            if index >= count and self.skip_conv_layers != (0,):
                raise QuantizationError(
                    f"skip_conv_layers: there is no convolution {index}; this model has {count}, counted from 0"
                )


def plain_operator(operator: str) -> str:
    """An operator's name without dialect: "relax.nn.conv2d", "nn.conv2d", "qnn.conv2d" are all "conv2d"."""
    return operator.rsplit(".", 1)[-1]


def preferred_dtype(target: Any) -> str:
    """The activation dtype that the target multiplies fastest; uint8, as on x86, if it widens both."""
    return _native_dtype() if target is None else _dtype_for(target)


@cache
def _native_dtype() -> str:
    return _dtype_for("native")


def _dtype_for(target: Any) -> str:
    from ..targets.features import operand_dtypes
    from ..targets.names import make_target

    wanted = operand_dtypes(make_target(target))
    return wanted[0] if wanted else "uint8"


def replace_fields(config: QConfig, values: Mapping[str, Any]) -> QConfig:
    """`config` with some fields replaced. Raises QuantizationError for unknown names."""
    names = [item.name for item in fields(QConfig)]
    for name in values:
        if name not in names:
            raise QuantizationError(f"qconfig: there is no field {name!r}; the fields are {', '.join(names)}")
    return replace(config, **values)


_current = Scopes[QConfig]()


def current_config() -> QConfig | None:
    """The QConfig of the innermost `with qconfig(...)` of this thread, None outside any."""
    return _current.innermost


def resolve_config(config: QConfig | None) -> QConfig:
    """The config given, else that of the innermost `with qconfig(...)`, else the defaults. Raises QuantizationError."""
    if config is not None and not isinstance(config, QConfig):
        raise QuantizationError(f"a configuration must be a QConfig, found {type(config).__name__}: use QConfig(...)")
    return config or current_config() or QConfig()


class qconfig(ContextDecorator):
    """`with qconfig(calibrate_mode="mse") as config:` sets fields for all quantization inside it, in this thread.

    Other fields keep the value of the enclosing `with qconfig(...)`, or their default; a QConfig as first argument
    replaces that starting point. It can be entered as often as wanted, also inside itself. Raises QuantizationError.
    """

    def __init__(self, config: QConfig | None = None, /, **values: Any) -> None:
        self._config, self._values = config, values

    def __enter__(self) -> QConfig:
        resolved = replace_fields(resolve_config(self._config), self._values)
        _current.enter(resolved)
        return resolved

    def __exit__(self, *_: object) -> None:
        _current.leave()
