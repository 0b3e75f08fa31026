"""Valid values of a QConfig's fields, and which contradict each other: one table of rules, with clear errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import QuantizationError
from ..op.blockwise import LONGEST_GROUP

CALIBRATE_MODES = (
    "auto",
    "global_scale",
    "minmax",
    "moving_average",
    "extrapolated",
    "percentile",
    "kl_divergence",
    "entropy",
    "mse",
    "output_error",
)
FLOAT_FUNCTIONS = ("softmax", "layer_norm", "gelu", "log")
PRECISIONS = ("int8", "int16", "bfloat16", "float16", "float32")

# The fields an override may set for a layer, and that a LayerConfig has
LAYER_FIELDS = (
    "precision",
    "nbit_input",
    "nbit_weight",
    "nbit_activation",
    "dtype_input",
    "dtype_weight",
    "dtype_activation",
    "per_channel",
    "symmetric",
    "calibrate_mode",
    "percentile",
    "weight_scale",
    "weight_symmetric",
    "group_size",
    "range",
)

Check = Callable[[Any], bool]


def _one_of(*allowed: Any) -> tuple[Check, str]:
    return (lambda value: any(value is item or (type(value) is type(item) and value == item) for item in allowed)), (
        "one of " + ", ".join(map(repr, allowed))
    )


def _number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _whole(low: int, high: int, *further: int) -> tuple[Check, str]:
    wording = f"a whole number from {low} to {high}" + "".join(f" or {item}" for item in further)
    return (
        lambda value: _number(value) and int(value) == value and (low <= value <= high or value in further)
    ), wording


def _real(low: float, high: float, wording: str) -> tuple[Check, str]:
    """low < value ≤ high"""
    return (lambda value: _number(value) and bool(np.isfinite(value)) and low < value <= high), wording


def _names(wording: str) -> tuple[Check, str]:
    return (
        lambda value: (
            value is None
            or (
                isinstance(value, Sequence)
                and not isinstance(value, str)
                and all(isinstance(item, str) for item in value)
            )
        )
    ), wording


def _is_range(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, Sequence) and len(value) == 2 and all(map(_number, value)) and value[0] < value[1]


_FLAG = _one_of(True, False)
_FLAG_OR_AUTO = (lambda value: isinstance(value, bool) or value == "auto", "True, False or 'auto'")
_PRECISION = _one_of(*PRECISIONS)

RULES: dict[str, tuple[Check, str]] = {
    "nbit_input": _whole(2, 8),
    "nbit_weight": _whole(2, 8),
    "nbit_activation": _whole(2, 8, 32),
    "dtype_input": _one_of("auto", "int8", "uint8"),
    "dtype_weight": _one_of("int8"),
    "dtype_activation": _one_of("int32", "int8", "uint8"),
    "calibrate_mode": _one_of(*CALIBRATE_MODES),
    "global_scale": _real(0, float("inf"), "a finite number above 0"),
    "weight_scale": _one_of("max", "power2", "mse", "hqq"),
    "weight_symmetric": _FLAG,
    "weight_only": _FLAG,
    "group_size": (
        lambda value: value is None or (_number(value) and int(value) == value and 1 <= value <= LONGEST_GROUP),
        f"None or a whole number from 1 to {LONGEST_GROUP}",
    ),
    "group_scales": _one_of("float32", "float16", "bfloat16"),
    "embeddings": _FLAG,
    "skip_dense_layer": _FLAG,
    "skip_conv_layers": (
        lambda value: (
            value is None
            or (isinstance(value, tuple) and all(_number(item) and int(item) == item >= 0 for item in value))
        ),
        "None or positions of convolutions, counted from 0",
    ),
    "do_simulation": _FLAG,
    "round_for_shift": _FLAG,
    "debug_enabled_ops": _names("None or a list of operator names"),
    "rounding": _one_of("TONEAREST_EVEN", "UPWARD", "TONEAREST"),
    "calibrate_chunk_by": _whole(1, 2**31 - 1, -1),
    "partition_conversions": _one_of("disabled", "enabled", "fully_integral"),
    "per_channel": _FLAG,
    "symmetric": _one_of(None, True, False),
    "percentile": _real(50, 100, "a number above 50 and at most 100 (percent)"),
    "bins": _whole(128, 1 << 20),
    "momentum": (lambda value: _number(value) and 0 <= value < 1, "a number of at least 0 and below 1"),
    "first_layer": _PRECISION,
    "last_layer": _PRECISION,
    "quantization_formula": _one_of("google", "cambricon"),
    "weight_rounding": _one_of("auto", "nearest", "gptq", "adaround"),
    "bias_correction": _FLAG_OR_AUTO,
    "balance": _FLAG_OR_AUTO,
    "equalize": _FLAG_OR_AUTO,
    "smooth": (
        lambda value: value is None or value in ("auto", "awq") or (_number(value) and 0 < value < 1),
        "None or a number between 0 and 1, or 'auto' or 'awq'",
    ),
    "dynamic": _FLAG,
    "float_functions": (
        lambda value: isinstance(value, tuple) and all(item in FLOAT_FUNCTIONS for item in value),
        f"a list of any of {', '.join(map(repr, FLOAT_FUNCTIONS))}",
    ),
    "num_workers": _whole(1, 1024),
    "precision": _PRECISION,
    "range": (_is_range, "a pair (low, high) with low < high"),
}


def check_fields(values: Mapping[str, Any]) -> None:
    """Raises QuantizationError if a field has an invalid value, or two fields contradict each other."""
    for name, value in values.items():
        if name in RULES:
            _check(name, value, name)
    _check_overrides(values["overrides"])
    for pattern, changes in ((None, {}), *values["overrides"].items()):
        for problem in _contradictions({**values, **changes}):
            raise QuantizationError(problem if pattern is None else f"overrides[{pattern!r}]: {problem}")


def _check(name: str, value: Any, where: str) -> None:
    check, wording = RULES[name]
    if not check(value):
        raise QuantizationError(f"{where} must be {wording}, found {value!r}")


def _check_overrides(overrides: Any) -> None:
    if not isinstance(overrides, Mapping):
        raise QuantizationError(f"overrides must map layer name patterns to fields, found {overrides!r}")
    for pattern, values in overrides.items():
        if not isinstance(values, Mapping):
            raise QuantizationError(f"overrides[{pattern!r}] must map fields to values, found {values!r}")
        for name, value in values.items():
            if name not in LAYER_FIELDS:
                raise QuantizationError(
                    f"overrides[{pattern!r}]: a layer has no field {name!r}; its fields are {', '.join(LAYER_FIELDS)}"
                )
            _check(name, value, f"overrides[{pattern!r}][{name!r}]")


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    """The contradictions, each with its remedy."""
    cambricon = values["quantization_formula"] == "cambricon"
    dtype, bits = values["dtype_activation"], values["nbit_activation"]
    rules = [
        (
            dtype == "int32" and bits != 32,
            f"dtype_activation='int32' and nbit_activation={bits} contradict each other: give dtype_activation "
            "'int8' or 'uint8', or nbit_activation=32",
        ),
        (
            dtype != "int32" and bits > 8,
            f"dtype_activation={dtype!r} cannot have {bits} bits: give an nbit_activation of at most 8",
        ),
        (
            cambricon and values["symmetric"] is False,
            "quantization_formula='cambricon' has no zero points, but symmetric=False requests them: leave symmetric "
            "out, or choose 'google'",
        ),
        (
            cambricon and "uint8" in (values["dtype_input"], dtype),
            "quantization_formula='cambricon' has no zero points, but uint8 needs one: choose int8, or 'google'",
        ),
        (
            values["dynamic"] and values["calibrate_mode"] != "auto",
            "dynamic=True finds ranges at run time, but calibrate_mode requests calibrated ones: leave "
            "calibrate_mode at 'auto', or dynamic out",
        ),
        (
            values["dynamic"] and values["partition_conversions"] != "disabled",
            "dynamic=True has no integer activations to partition: leave partition_conversions at 'disabled'",
        ),
        (
            values["dynamic"]
            and values["group_size"] is None
            and (
                values["do_simulation"]
                or values["bias_correction"] is True
                or values["balance"] is True
                or values["weight_rounding"] not in ("auto", "nearest")
            ),
            "dynamic=True finds ranges only at run time: it cannot be combined with do_simulation, bias_correction, "
            "balance or weight_rounding",
        ),
        (
            values["do_simulation"] and values["partition_conversions"] == "fully_integral",
            "do_simulation=True computes in float, but partition_conversions='fully_integral' forbids that: choose one",
        ),
    ]
    return [problem for holds, problem in (*rules, *_group_rules(values)) if holds]


def by_groups(values: Mapping[str, Any]) -> bool:
    """Whether weights are quantized in groups, as `quantize.grouped` does."""
    return bool(values["weight_only"] or (values["dynamic"] and values["group_size"] is not None))


def _group_rules(values: Mapping[str, Any]) -> list[tuple[bool, str]]:
    """The contradictions of weights in groups."""
    grouped = by_groups(values)
    mode = "weight_only=True" if values["weight_only"] else "group_size"
    needing = {
        "group_size": values["group_size"] is not None,
        "weight_scale='hqq'": values["weight_scale"] == "hqq",
        "weight_symmetric=False": not values["weight_symmetric"],
        "group_scales": values["group_scales"] != "float32",
        "embeddings": values["embeddings"],
        "smooth='awq'": values["smooth"] == "awq",
    }
    unfit = {
        "do_simulation": values["do_simulation"],
        "bias_correction": values["bias_correction"] is True,
        "balance": values["balance"] is True,
        "per_channel=False": not values["per_channel"],
        "calibrate_mode": values["calibrate_mode"] != "auto",
        "partition_conversions": values["partition_conversions"] != "disabled",
        "quantization_formula='cambricon'": values["quantization_formula"] == "cambricon",
        "weight_scale='power2'": values["weight_scale"] == "power2",
        "weight_rounding='adaround'": values["weight_rounding"] == "adaround",
    }
    precisions = [values.get(name, "int8") for name in ("precision", "first_layer", "last_layer")]
    return [
        (
            values["weight_only"] and values["dynamic"],
            "weight_only=True leaves activations float, dynamic=True quantizes them: choose one",
        ),
        *(
            (
                wanted and not grouped,
                f"{name} is for weights in groups: give weight_only=True, or dynamic=True and a group_size",
            )
            for name, wanted in needing.items()
        ),
        *(
            (grouped and set_, f"{mode} cannot be combined with {name}: leave one of them out")
            for name, set_ in unfit.items()
        ),
        (
            grouped and values["nbit_weight"] not in (2, 4, 8),
            f"weights in groups have 2, 4 or 8 bits, but nbit_weight is {values['nbit_weight']}",
        ),
        (
            grouped and any(precision not in ("int8", "float32") for precision in precisions),
            f"{mode} knows no precisions but 'int8' and 'float32': leave such layers in 'float32'",
        ),
    ]
