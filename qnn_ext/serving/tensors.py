"""What a request holds, and what a model takes: types and shapes in the words of the protocol, batches as samples."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError, QnnError
from ..module import TensorSpec, check_inputs, quantized
from ..running.pool import Pool

_DATATYPES = {
    "bool": "BOOL",
    **{f"{kind}int{bits}": f"{kind.upper()}INT{bits}" for kind in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}


def datatype(dtype: Any) -> str:
    """The protocol's name of a dtype. Raises QnnError if it has none."""
    name = str(np.dtype(dtype)) if not isinstance(dtype, str) else dtype
    if name not in _DATATYPES:
        raise QnnError(f"the Open Inference Protocol has no tensors of {name}: it has {', '.join(_DATATYPES)}")
    return _DATATYPES[name]


def described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """Inputs or outputs as a model's metadata list them; −1 is a batch of any size or a size known only at run time."""
    return [
        {
            "name": spec.name,
            "datatype": datatype(spec.dtype),
            "shape": list(spec.of_batch(-1) if spec.dynamic_batch else spec.with_bounded(-1)),
        }
        for spec in specs
    ]


def of_instances(payload: Any, inputs: Sequence[TensorSpec]) -> np.ndarray:
    """The input of a V1 request, {"instances": [sample, ...]}, which KServe's batcher makes of several requests.

    Integers must be values of the input's dtype; real values for a quantized input are quantized. Raises InputError.
    """
    instances = payload.get("instances") if isinstance(payload, Mapping) else None
    plain = len(inputs) == 1 and inputs[0].shape and not inputs[0].batch_axis
    if not isinstance(instances, list) or not instances or not plain:
        raise InputError(
            'a V1 request is {"instances": [sample, ...]}, for a model with one input whose first dimension is the '
            f"batch; this one takes {', '.join(map(str, inputs))}: other requests are asked in V2"
        )
    spec = inputs[0]
    try:
        values = np.asarray(instances)
    except ValueError as error:
        raise InputError(f"the instances are no array: {error}") from None
    if values.dtype.kind in "iub":
        with np.errstate(invalid="ignore"):
            converted = values.astype(spec.dtype)
        if not np.array_equal(converted, values):
            raise InputError(f"the instances have values that {spec.dtype} does not have")
        values = converted
    if values.shape[1:] != spec.shape[1:]:
        raise InputError(f"an instance of {spec.name!r} has shape {spec.shape[1:]}, found {values.shape[1:]}")
    if len(values) % spec.shape[0]:
        raise InputError(f"this model takes {spec.shape[0]} instances at a time, found {len(values)}")
    whole = TensorSpec(spec.name, values.shape, spec.dtype, spec.qparams)
    return quantized([values], [whole])[0]


async def answer(
    pool: Pool, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], values: Mapping[str, Any], real: bool
) -> dict[str, np.ndarray]:
    """The outputs for a request; the samples of a batch are divided among the pool's streams.

    real: whether real values given for a quantized input are quantized. Raises InputError.
    """
    arrays = quantized(values, inputs) if real else check_inputs(values, inputs)
    pairs = list(zip(arrays, inputs, strict=True))
    size = next((array.shape[spec.batch_axis] for array, spec in pairs if spec.dynamic_batch), 1)
    calls = [tuple(spec.sample(array, at) for array, spec in pairs) for at in range(size)] if size > 1 else [arrays]
    axes = {spec.name: spec.batch_axis for spec in outputs if spec.dynamic_batch}
    return await _joined(pool, calls, axes)


async def answer_instances(
    pool: Pool, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], payload: Any
) -> dict[str, np.ndarray]:
    """The outputs for a V1 request, in which each instance has its row. Raises InputError."""
    values = of_instances(payload, inputs)
    size = inputs[0].shape[0]
    wrong = [str(spec) for spec in outputs if spec.shape[:1] != (size,) or spec.batch_axis or spec.bounded]
    if wrong:
        raise InputError(f"V1 answers instance by instance, but this model has {', '.join(wrong)}: ask in V2")
    calls = [[values[at : at + size]] for at in range(0, len(values), size)]
    return await _joined(pool, calls, {spec.name: 0 for spec in outputs})


async def _joined(pool: Pool, calls: Sequence[Sequence[np.ndarray]], axes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The outputs of all calls, concatenated along these axes; those without one are of the first."""
    parts = await asyncio.gather(*(_outputs(pool, tuple(call)) for call in calls))
    if len(parts) == 1:
        return parts[0]
    return {
        name: np.concatenate([part[name] for part in parts], axes[name]) if name in axes else value
        for name, value in parts[0].items()
    }


async def _outputs(pool: Pool, values: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = await pool.submit(values)
    return found
