"""QnnModule: the Relax module from a frontend, together with the model's names, QParams and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import InputError
from .lazily import np
from .qparams import QParams


@dataclass(frozen=True)
class TensorSpec:
    """One input or output, with its name in the model. `qparams` is None if the values are not quantized.

    dynamic_batch: dimension `batch_axis`, 1 in `shape`, may have any size in a call, the same for all inputs that have
                   one
    bounded:       the axes of an output whose size is only known at run time; `shape` has the largest it can be
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    qparams: QParams | None = None
    dynamic_batch: bool = False
    batch_axis: int = 0
    bounded: tuple[int, ...] = ()

    def __str__(self) -> str:
        kind = str(self.qparams) if self.qparams else self.dtype
        return f"{self.name}: {'×'.join(map(str, self.dims)) or 'scalar'} {kind}"

    @property
    def dims(self) -> tuple[int | str, ...]:
        """The shape, with "N" for a batch of any size, and "≤9" for a size of at most 9."""
        shape = self.of_batch("N") if self.dynamic_batch else self.shape
        return tuple(f"≤{size}" if axis in self.bounded else size for axis, size in enumerate(shape))

    def of_batch(self, size: Any) -> tuple[Any, ...]:
        """The shape with another batch size; without a dynamic batch, the shape."""
        axis = self.batch_axis
        return (*self.shape[:axis], size, *self.shape[axis + 1 :]) if self.dynamic_batch else self.shape

    def with_bounded(self, size: Any) -> tuple[Any, ...]:
        """The shape with something else in place of sizes that are only known at run time."""
        return tuple(size if axis in self.bounded else length for axis, length in enumerate(self.shape))

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether this is the shape, with a batch of any size from 1 if it is dynamic."""
        if not self.dynamic_batch:
            return shape == self.shape
        size = shape[self.batch_axis] if len(shape) == len(self.shape) else 0
        return size > 0 and shape == self.of_batch(size)

    def may_be(self, shape: tuple[int, ...]) -> bool:
        """Whether an output of one sample may have this shape."""
        return len(shape) == len(self.shape) and all(
            found == size or (axis in self.bounded and found < size)
            for axis, (found, size) in enumerate(zip(shape, self.shape, strict=True))
        )

    def sample(self, array: np.ndarray, index: int) -> np.ndarray:
        """One sample of a batch, as a batch of one; without a dynamic batch, the whole array."""
        parts = (slice(None),) * self.batch_axis + (slice(index, index + 1),)
        return array[parts] if self.dynamic_batch else array


@dataclass(frozen=True)
class State:
    """A value a streaming model keeps between calls: an extra last input and output of `main`."""

    name: str
    initial: np.ndarray


@dataclass(frozen=True)
class FloatNote:
    """A node that runs in float although the model quantizes it, and why."""

    node: str
    operator: str
    reason: str


BOUNDS, DIVISOR = "bounds", "divisor"


@dataclass(frozen=True)
class Check:
    """A condition on values that are only known at run time, as listed in a compiled model.

    label:     the node of the model
    kind:      BOUNDS for indices with low ≤ x ≤ high, DIVISOR for x ≠ low
    """

    label: str
    kind: str
    low: int
    high: int

    def error(self, value: int) -> InputError:
        """The error to raise for a value that violates the condition."""
        if self.kind == DIVISOR:
            found = "integer division by zero"
        else:
            found = f"index {value} is out of range {self.low} … {self.high}"
        return InputError(f"{self.label}: {found}, for these inputs")


@dataclass(frozen=True)
class QnnModule:
    """A model in the QNN dialect.

    ir:      tvm.IRModule whose `main` takes inputs, then states, and returns a tuple of outputs, then new states
    inputs, outputs: in model order
    states:  values carried over from call to call, empty for ordinary models
    notes:   which nodes stay float, and why
    source:  where the model came from, for messages
    """

    ir: Any
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: tuple[State, ...] = ()
    notes: tuple[FloatNote, ...] = ()
    source: str = "model"

    def __repr__(self) -> str:
        ports = [", ".join(map(str, specs)) for specs in (self.inputs, self.outputs)]
        return f"QnnModule({self.source!r}, {ports[0]} → {ports[1]})"

    def script(self, show_meta: bool = False) -> str:
        """The module as TVMScript; with `show_meta` it parses back by `tvm.script.from_source`."""
        return str(self.ir.script(show_meta=show_meta))


def sizes_spec(outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The result of compiled code after the model's outputs: the sizes of the outputs along their `bounded` axes, in
    order; none if they have no such axes."""
    count = sum(len(spec.bounded) for spec in outputs)
    return [TensorSpec("sizes", (count,), "int64")] if count else []


def trimmed(data: np.ndarray, sizes: dict[int, int]) -> np.ndarray:
    """A copy of the first elements along each of these axes."""
    whole = [slice(None)] * data.ndim
    for axis, size in sizes.items():
        whole[axis] = slice(max(size, 0))
    return data[tuple(whole)].copy()


def zeros(specs: Iterable[TensorSpec]) -> list[np.ndarray]:
    """An array of zeros for each input, to time a model on."""
    return [np.zeros(spec.shape, spec.dtype) for spec in specs]


class ByPosition(ABC):
    """What runs a model and may be called with its inputs in model order."""

    @abstractmethod
    def _run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """The outputs in model order."""

    def __call__(self, *inputs: np.ndarray) -> np.ndarray | list[np.ndarray]:
        """The outputs, for inputs in model order: an array if there is one output, a list if there are several."""
        outputs = self._run(inputs)
        return outputs[0] if len(outputs) == 1 else outputs


def check_inputs(
    values: Mapping[str, np.ndarray] | Sequence[np.ndarray], specs: Sequence[TensorSpec]
) -> list[np.ndarray]:
    """The input arrays in model order, contiguous. Raises InputError on a wrong name, count, shape or dtype."""
    values = in_model_order(values, specs)
    arrays = [_check_input(_as_array(value, spec), spec) for value, spec in zip(values, specs, strict=True)]
    batches = {
        spec.name: array.shape[spec.batch_axis] for array, spec in zip(arrays, specs, strict=True) if spec.dynamic_batch
    }
    if len(set(batches.values())) > 1:
        raise InputError(f"all inputs must have the same batch size, found {batches}")
    return arrays


def quantized(values: Mapping[str, np.ndarray] | Sequence[np.ndarray], specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """The input arrays in model order, real values as what the inputs take: clip(rint(x / scale) + zero_point) for a
    quantized input, x in the input's own precision for a float one. Integers stay as they are.

    Raises InputError on a wrong name, count, shape or dtype, and for NaN in a quantized input.
    """
    ordered = in_model_order(values, specs)
    arrays = [_quantized(_as_array(value, spec), spec) for value, spec in zip(ordered, specs, strict=True)]
    return check_inputs(arrays, specs)


def _quantized(value: np.ndarray, spec: TensorSpec) -> np.ndarray:
    if value.dtype.kind != "f" or not spec.fits(value.shape):
        return value
    if spec.qparams is None:
        return value.astype(spec.dtype) if spec.dtype.startswith("float") else value
    if np.isnan(value).any():
        raise InputError(f"the values for input {spec.name!r} contain NaN")
    return spec.qparams.quantize(value)


def _as_array(value: Any, spec: TensorSpec) -> np.ndarray:
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:  # ragged lists; tensors with gradients or on a device
        raise InputError(f"input {spec.name!r}: a {type(value).__name__} is no array: {error}") from error


def as_inputs(values: Any) -> Any:
    """The inputs of a call: an array or tensor that is not in a list or dict is the only one. Raises InputError for
    what is neither."""
    if hasattr(values, "__array__") or hasattr(values, "__dlpack__"):
        return [values]
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise InputError(f"inputs must be arrays in a list or by name, found {type(values).__name__}")
    return values


def in_model_order(values: Mapping[str, Any] | Sequence[Any], specs: Sequence[TensorSpec]) -> list[Any]:
    """One value for each input, given by name or in order. Raises InputError on a wrong name or count."""
    values = as_inputs(values)
    names = [spec.name for spec in specs]
    if isinstance(values, Mapping):
        unknown = [name for name in values if name not in names]
        missing = [name for name in names if name not in values]
        if unknown or missing:
            problem = f"unknown input {unknown[0]!r}" if unknown else f"input {missing[0]!r} is missing"
            raise InputError(f"{problem}; this model takes {', '.join(map(repr, names))}")
        values = [values[name] for name in names]
    if len(values) != len(specs):
        raise InputError(f"this model takes {len(specs)} inputs ({', '.join(map(str, specs))}), found {len(values)}")
    return list(values)


def run_by_sample(
    run: Callable[[list[np.ndarray]], list[np.ndarray]],
    arrays: list[np.ndarray],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> list[np.ndarray]:
    """The results of `run`, which takes one sample; larger batches go through it sample by sample."""
    pairs = list(zip(arrays, inputs, strict=True))
    size = next((array.shape[spec.batch_axis] for array, spec in pairs if spec.dynamic_batch), 1)
    if size == 1:
        return run(arrays)
    results = [run([spec.sample(array, index) for array, spec in pairs]) for index in range(size)]
    parts = zip(outputs, zip(*results, strict=True), strict=True)
    return [np.concatenate(found, spec.batch_axis) if spec.dynamic_batch else found[0] for spec, found in parts]


def _check_input(value: np.ndarray, spec: TensorSpec) -> np.ndarray:
    if not spec.fits(value.shape):
        batch = f"({', '.join(map(str, spec.dims))}) with N ≥ 1"
        wanted = batch if spec.dynamic_batch else str(spec.shape)
        raise InputError(f"input {spec.name!r} must have shape {wanted}, found {value.shape}")
    if value.dtype != spec.dtype:
        hint = ""
        if spec.qparams and value.dtype.kind == "f":
            hint = f"; quantize it with {spec.qparams}, as an engine's run(…, quantize=True) does"
        raise InputError(f"input {spec.name!r} must be {spec.dtype}, found {value.dtype}{hint}")
    return np.asarray(value, order="C")
