"""TFLite: the models of tests/conformance with other inputs. For ordinary inputs LiteRT's answers are tested there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import qnn_ext
from tests.conformance.cases import Case as Model
from tests.conformance.cases import load_cases

from .case import FLOATS, INDICES, Case, with_each

OPERATORS = (
    *(
        "GATHER",
        "GATHER_ND",
        "ONE_HOT",
        "DIV",
        "FLOOR_DIV",
        "FLOOR_MOD",
        "CAST",
        "QUANTIZE",
        "ARG_MAX",
        "ARG_MIN",
        "TOPK_V2",
    ),
    *("SOFTMAX", "LOG_SOFTMAX", "FAKE_QUANT", "RELU", "RELU6", "RELU_0_TO_1", "RELU_N1_TO_1", "MAXIMUM", "MINIMUM"),
    *(
        "REDUCE_MAX",
        "REDUCE_MIN",
        "MAX_POOL_2D",
        "LOGISTIC",
        "TANH",
        "EXP",
        "ELU",
        "GELU",
        "HARD_SWISH",
        "ROUND",
        "SIGN",
    ),
)


def cases() -> Iterator[Case]:
    """Two models of each operator and dtype that takes hostile values: integers beside the data, or floats."""
    taken: dict[tuple[str, str], int] = {}
    for model in load_cases():
        key = model.operator, model.dtype
        if model.operator not in OPERATORS or taken.get(key, 0) == 2 or not _takes_hostile_values(model):
            continue
        taken[key] = taken.get(key, 0) + 1
        yield Case(
            f"TFLite {model.operator} {model.name}",
            lambda model=model: qnn_ext.from_tflite(model.model),
            _trials(model),
        )


def _takes_hostile_values(model: Model) -> bool:
    dtypes = [array.dtype.kind for array in model.inputs[0]]
    return "f" in dtypes or len(dtypes) > 1 or model.operator == "ONE_HOT"


def _trials(model: Model) -> list[list[np.ndarray]]:
    inputs = [np.asarray(array) for array in model.inputs[-1]]
    trials: list[list[np.ndarray]] = []
    for position, array in enumerate(inputs):
        if not array.size:
            continue
        replaced: list[Any]
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):
                replaced = [np.resize(np.roll(FLOATS, shift), array.shape).astype(array.dtype) for shift in (0, 7)]
        elif array.dtype.kind in "iu":
            replaced = with_each(array, (*INDICES, np.iinfo(array.dtype).min, np.iinfo(array.dtype).max))
        else:
            continue
        trials += [[*inputs[:position], new, *inputs[position + 1 :]] for new in replaced]
    return trials
