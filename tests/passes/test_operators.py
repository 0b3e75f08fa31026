"""All operators × all passes: each operator says what the passes ask, and what it says is true."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.compiling.build import qnn_pipeline
from qnn_ext.interpreter import interpret
from qnn_ext.op import OPS, OpDef, axes
from qnn_ext.op.base import TensorInfo, as_expr, call_attributes, constant, constant_value, define
from qnn_ext.op.relax_table import RELAX, traits_of
from qnn_ext.op.traits import Data, Kind, Output, Traits
from qnn_ext.passes import channels_last, legalize
from qnn_ext.passes.canonicalize.registry import RULES as CANONICAL
from qnn_ext.passes.fuse import COMPOSITE
from qnn_ext.passes.layout.propagation import RULES as LAYOUT
from qnn_ext.passes.legalize_float import float_legalizations
from qnn_ext.passes.legalize_gpu import gpu_legalizations
from qnn_ext.passes.needs import NEEDS, missing
from qnn_ext.passes.qdq_to_integer import qdq_to_integer
from qnn_ext.passes.qdq_to_integer.registry import RULES as INTEGER
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.passes.sink import sink_reshapes
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.generic.elementwise import RULES as ELEMENTWISE
from qnn_ext.topi_int8.generic.stages import STAGES
from tests.cases.samples import SAMPLES

from .modules import compile_and_run, inputs_of, module

R = relax.op
PACKAGE = Path(qnn_ext.__file__).parent
EVERY = {**{f"qnn.{name}": definition.traits for name, definition in OPS.items()}, **RELAX}
# those that a pass takes out before kernels are made
GONE = {"qnn.check_bounds", "qnn.check_divisor", "qnn.loop", "qnn.observe", "qnn.trim"}


# ---- every operator has its traits -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_passes_find_what_they_ask(name):
    assert missing(EVERY[name]) == []


@pytest.mark.parametrize("name", OPS)
def test_every_argument_has_one_role(name):
    traits = OPS[name].traits
    assert sorted(traits.roles) == sorted(argument for argument in traits.arguments if not argument.startswith("*"))


@pytest.mark.parametrize("name", OPS)
def test_every_operator_has_a_way_to_a_kernel(name):
    name = f"qnn.{name}"
    legalized = f"relax.{name}" in float_legalizations()
    implemented = name in ELEMENTWISE or name in STAGES or name in CANONICAL or name in GONE or legalized
    assert implemented or EVERY[name].kind is Kind.ACCUMULATOR
    if EVERY[name].kind is Kind.POINTWISE:
        assert name in ELEMENTWISE or name in CANONICAL


def emitted(file: Path) -> set[str]:
    """The Relax operators a module calls: `relax.op.nn.relu` is "nn.relu"."""
    chains = [ast.unparse(node) for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)]
    names = {chain.removeprefix("relax.op.") for chain in chains if chain.startswith("relax.op.")}
    return names - {"nn", "image"}


@cache
def everything_emitted() -> set[str]:
    folders = ("frontends", "quantize", "passes", "op", "numerics")
    return {name for folder in folders for file in (PACKAGE / folder).rglob("*.py") for name in emitted(file)}


def unknown(known: dict[str, Traits]) -> set[str]:
    """The Relax operators that frontends and passes emit, or passes have rules for, without an entry."""
    rules = {str(name) for table in (INTEGER, LAYOUT, ELEMENTWISE, STAGES) for name in table if isinstance(name, str)}
    legalized = {name.removeprefix("relax.") for name in (*float_legalizations(), *gpu_legalizations())}
    return {name for name in everything_emitted() | rules | legalized if not name.startswith("qnn.")} - set(known)


def test_every_relax_operator_in_use_has_an_entry():
    assert "nn.conv2d" in everything_emitted() and "add" in everything_emitted()
    assert unknown(RELAX) == set()


@pytest.mark.parametrize("name", ["nn.conv2d", "take", "nn.relu", "argsort"])
def test_an_entry_that_is_missing_is_named(name):
    assert unknown({key: traits for key, traits in RELAX.items() if key != name}) == {name}


# what takes an answer from an operator that has it
DAMAGED: dict[str, tuple[str, dict[str, Any]]] = {
    "legalize": ("qnn.requantize", {"data": (Data("data"),)}),
    "legalize, hoist": ("reshape", {"data": ()}),
    "legalize, coverage, fold": ("qnn.dense", {"data": (Data("data"),)}),
    "layout, sink": ("qnn.quantize", {"data": ()}),
    "layout": ("nn.max_pool3d", {"layouts": ()}),
    "qdq_to_integer, realize, equalize": ("flip", {"moved_axis": None}),
    "qdq_to_integer": ("nn.relu", {"data": (Data("x1"), Data("x2"))}),
    "fuse, lower": ("qnn.dense_accumulate", {"data": (Data("data"),)}),
    "fuse": ("qnn.row_sum", {"data": ()}),
}


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.needed_by)
def test_a_trait_that_is_missing_is_named(need):
    name, damage = DAMAGED[need.needed_by]
    assert f"{need.needed_by}: {need.reason}" in missing(replace(EVERY[name], **damage))


def test_roles_of_arguments_that_do_not_exist():
    with pytest.raises(ValueError, match="the traits refer to offset, which are not among the arguments data, scale"):
        Traits(Kind.POINTWISE, data=(Data("data"),), output=Output("scale", "offset")).of(("data", "scale"))


# ---- what is said of offsets -------------------------------------------------------------------------------------


def sampled(name: str) -> tuple[relax.Call, list[np.ndarray]]:
    """The sample call of an operator, and values of all its arguments within 7 bits."""
    variables, build = SAMPLES[name]
    rng = np.random.default_rng(5)
    call = build(*(relax.Var(variable, relax.TensorType(shape, dtype)) for variable, shape, dtype in variables))
    values = []
    for arg in call.args:
        value = constant_value(as_expr(arg))
        if value is None:
            shape, dtype = [int(dim) for dim in arg.ty.shape], str(arg.ty.dtype)
            low = 0 if dtype.startswith("u") else -60
            value = rng.integers(low, 60, shape).astype(dtype)
        values.append(value)
    return call, values


@pytest.mark.parametrize("name", [name for name, definition in OPS.items() if definition.traits.shift_invariant])
def test_shift_invariant(name):
    """Data and zero point greater by 7: the same result."""
    call, values = sampled(name)
    traits, reference, attributes = OPS[name].traits, OPS[name].reference, call_attributes(call)
    for data in traits.data:
        moved = list(values)
        for argument in (data.name, data.zero_point):
            index = traits.index(argument)
            moved[index] = moved[index] + np.asarray(7, moved[index].dtype)
        np.testing.assert_array_equal(reference(*moved, **attributes), reference(*values, **attributes))


@pytest.mark.parametrize("name", [n for n, d in OPS.items() if d.traits.output and d.traits.output.offset])
def test_offset(name):
    """A zero point greater by 7: results greater by 7, where they are not clipped."""
    call, values = sampled(name)
    traits, attributes = OPS[name].traits, call_attributes(call)
    plain = {"rounding": "TONEAREST_EVEN", "compute_dtype": "float32", "out_dtype": "int8", "pot_scale": False}
    attributes.update({key: value for key, value in plain.items() if key in attributes})
    index = traits.index(traits.output.zero_point)
    moved = [*values[:index], values[index] + np.int32(7), *values[index + 1 :]]
    got, before = (np.asarray(OPS[name].reference(*args, **attributes), np.int64) for args in (moved, values))
    limits = np.iinfo(attributes["out_dtype"])
    inside = (before > limits.min) & (before + 7 < limits.max)
    assert inside.any()
    np.testing.assert_array_equal(got[inside], before[inside] + 7)


# ---- what is said of values that are carried over ----------------------------------------------------------------

SHAPE = (2, 6, 5, 8)


def indices(*shape: int, below: int) -> relax.Expr:
    return constant(np.random.default_rng(7).integers(0, below, shape))


# a call on x of SHAPE, and on an equal tensor y
CARRIED: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda x, y: R.reshape(x, (2, 6, 40)),
    "flatten": lambda x, y: R.flatten(x),
    "nn.batch_flatten": lambda x, y: R.nn.batch_flatten(x),
    "squeeze": lambda x, y: R.squeeze(x),
    "expand_dims": lambda x, y: R.expand_dims(x, [0, 3]),
    "permute_dims": lambda x, y: R.permute_dims(x, [0, 3, 1, 2]),
    "broadcast_to": lambda x, y: R.broadcast_to(x, (3, *SHAPE)),
    "flip": lambda x, y: R.flip(x, 2),
    "repeat": lambda x, y: R.repeat(x, 2, 1),
    "take": lambda x, y: R.take(x, indices(2, below=5), 2),
    "strided_slice": lambda x, y: R.strided_slice(x, [2, 3], [1, 0], [4, 7], [1, 2]),
    "tile": lambda x, y: R.tile(x, (1, 2, 1, 3)),
    "gather_elements": lambda x, y: R.gather_elements(x, indices(2, 6, 3, 8, below=5), 2),
    "gather_nd": lambda x, y: R.gather_nd(x, indices(4, 2, below=2)),
    "nn.pad": lambda x, y: R.nn.pad(x, [0, 0, 0, 0, 1, 2, 0, 1], pad_mode="constant", pad_value=0.0),
    "image.resize2d": lambda x, y: R.image.resize2d(x, (10, 4), method="nearest_neighbor"),
    "concat": lambda x, y: R.concat([x, y], 1),
    "stack": lambda x, y: R.stack([x, y], 1),
    "nn.max_pool1d": lambda x, y: R.nn.max_pool1d(x, 2, 2),
    "nn.max_pool2d": lambda x, y: R.nn.max_pool2d(x, (2, 2), (2, 2), (1, 1, 0, 0)),
    "nn.max_pool3d": lambda x, y: R.nn.max_pool3d(x, (2, 2, 2), (1, 2, 2)),
    "max": lambda x, y: R.max(x, [0, 2]),
    "min": lambda x, y: R.min(x, 3, keepdims=True),
    "maximum": lambda x, y: R.maximum(x, y),
    "minimum": lambda x, y: R.minimum(x, y),
    "where": lambda x, y: R.where(constant(np.random.default_rng(7).random((6, 1, 8)) < 0.5), x, y),
    "split": lambda x, y: R.split(x, 2, 1),
}
# operators that want data of other ranks; dynamic_strided_slice has results of unknown shape
SHAPES = {"nn.max_pool1d": (2, 6, 8), "nn.max_pool3d": (1, 2, 4, 4, 6), "squeeze": (2, 1, 6, 8), "flatten": (1, 6, 1)}
NOT_SAMPLED = {"dynamic_strided_slice"}


def test_every_operator_that_carries_values_is_tried():
    carried = {name for name, traits in RELAX.items() if traits.carries} | {"image.resize2d"}
    assert set(CARRIED) == carried - NOT_SAMPLED


def applied(name: str, emit: Callable, x: Any, y: Any) -> Any:
    result = emit(CARRIED[name](x, y))
    return emit(relax.TupleGetItem(result, 0)) if name == "split" else result


@pytest.mark.parametrize("name", CARRIED)
@pytest.mark.parametrize("target, dtype", [("cascadelake", "int8"), ("rpi5", "uint8")])
def test_a_shift_is_carried_over(name, target, dtype):
    """From the producer of a tensor to a product behind the operator: no shift in between."""
    rng = np.random.default_rng(3)
    weight = rng.integers(-128, 128, (4, 1)).astype(np.int8)
    zero_point = int(np.iinfo(dtype).min) + 100

    def body(emit: Callable, x: Any) -> Any:
        produced = [emit(qnn.quantize(x, 0.05 * n, zero_point, out_dtype=dtype)) for n in (1, 2)]
        y = applied(name, emit, *produced)
        return qnn.dense(emit(R.reshape(y, (-1, 1))), constant(weight), zero_point, 0, 0.1, 0.02)

    mod = module([(SHAPES.get(name, SHAPE), "float32")], body)
    legal = legalize(mod, make_target(target, 1))
    inputs = [rng.normal(0, 4, SHAPES.get(name, SHAPE)).astype(np.float32)]
    np.testing.assert_array_equal(interpret(legal, inputs)[0], interpret(mod, inputs)[0])
    names = [op_name(binding.value) for binding in bindings_of(legal["main"])]
    assert "qnn.requantize" not in names
    (product,) = (binding.value for binding in bindings_of(legal["main"]) if op_name(binding.value) == "qnn.dense")
    assert str(product.args[0].ty.dtype) != dtype


@pytest.mark.parametrize("name", CARRIED)
def test_a_quantization_is_carried_over(name):
    """Between a dequantize and a quantize alike the operator works on integers, to the same bits."""
    rng = np.random.default_rng(3)

    def body(emit: Callable, *tensors: Any) -> Any:
        real = [emit(qnn.dequantize(x, 0.05, -7)) for x in tensors]
        return qnn.quantize(applied(name, emit, *real), 0.05, -7)

    shape = SHAPES.get(name, SHAPE)
    mod = module([(shape, "int8")] * 2, body)
    integers, notes = qdq_to_integer(mod)
    inputs = [rng.integers(-128, 128, shape).astype(np.int8) for _ in range(2)]
    np.testing.assert_array_equal(interpret(integers, inputs)[0], interpret(mod, inputs)[0])
    assert not notes
    names = [op_name(binding.value) for binding in bindings_of(integers["main"])]
    assert not [operator for operator in names if operator.startswith("qnn.")]


def tracked(traits: Traits) -> bool:
    return traits.moved_axis not in (None, axes.torn)


@pytest.mark.parametrize("name", [name for name, traits in RELAX.items() if tracked(traits) and name in CARRIED])
def test_moved_axis(name):
    """An axis along which numbers ascend, the same over all others, ascends along the axis that the traits name."""
    shape = SHAPES.get(name, SHAPE)
    x, y = (relax.Var(n, relax.TensorType(shape, "int32")) for n in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            call = CARRIED[name](x, y)
            output = builder.emit_output(builder.emit(call))
        builder.emit_func_output(output)
    call = bindings_of(builder.get()["main"])[0].value
    followed = 0
    for axis, size in enumerate(shape):
        moved = traits_of(call).moved_axis(call, axis)
        if moved is None:
            continue
        data = np.broadcast_to(np.arange(size, dtype=np.int32).reshape([-1, *[1] * (len(shape) - axis - 1)]), shape)
        result = interpret(builder.get(), [data, data])
        for part in result if not isinstance(result[0], tuple) else result[0]:
            along = np.moveaxis(np.asarray(part), moved, 0).reshape(size, -1)
            filled = along == 0 if traits_of(call).fill else False
            assert ((along == np.arange(size)[:, None]) | filled).all()
        followed += 1
    assert followed


# ---- a new operator ----------------------------------------------------------------------------------------------


@cache
def defined_distance() -> OpDef:
    """R.qnn.distance: |x − zero point|. TVM forgets no operator, so that it is defined once."""

    def infer(data: TensorInfo, zero_point: TensorInfo, output_zero_point: TensorInfo, *, out_dtype: str):
        return data.shape, out_dtype

    def reference(data, zero_point, output_zero_point, *, out_dtype):
        limits = np.iinfo(out_dtype)
        far = np.abs(data.astype(np.int32) - zero_point) + output_zero_point
        return np.clip(far, limits.min, limits.max).astype(out_dtype)

    traits = Traits(
        Kind.POINTWISE,
        data=(Data("data", zero_point="zero_point"),),
        output=Output(None, "output_zero_point", offset=True),
        shift_invariant=True,
    )
    return define("distance", "data zero_point output_zero_point", infer, reference, traits)


@pytest.fixture
def distance(monkeypatch):
    """An operator of a known kind: its definition and its kernel, and no pass."""

    def kernel(stage, data, zero_point, output_zero_point, *, out_dtype):
        limits = np.iinfo(out_dtype)
        far = tirx.abs(stage.shifted(data, zero_point, -1)) + stage.parameter(output_zero_point, -1)
        return tirx.min(tirx.max(far, int(limits.min)), int(limits.max)).astype(out_dtype)

    definition = defined_distance()
    monkeypatch.setitem(ELEMENTWISE, "qnn.distance", kernel)
    OPS["distance"] = definition
    yield definition
    del OPS["distance"]


@pytest.mark.parametrize("dtype, target", [("uint8", "rpi5"), ("int8", "cascadelake"), ("uint8", "haswell")])
def test_a_new_operator_of_a_known_kind_needs_no_pass(distance, rng, dtype, target):
    """Between two convolutions it keeps the layout, carries the shift, and runs in the kernel of the first."""
    weights = [rng.integers(-128, 128, (4, 4, 1, 1)).astype(np.int8) for _ in range(2)]
    zero_point = int(np.iinfo(dtype).min) + 100

    def body(emit: Callable, x: Any) -> Any:
        for weight in weights:
            layouts = {"data_layout": "NCHW", "kernel_layout": "OIHW"}
            acc = emit(qnn.conv2d(x, constant(weight), zero_point, 0, 0.1, 0.02, **layouts))
            y = emit(qnn.requantize(acc, np.float32(0.002), 0, 0.4, zero_point, axis=1, out_dtype=dtype))
            x = emit(distance.call(y, zero_point, zero_point, out_dtype=dtype))
        return x

    mod = module([((1, 4, 6, 5), dtype)], body)
    inputs = inputs_of(rng, mod)
    expected = interpret(mod, inputs)[0]
    last = channels_last(mod)
    names = [op_name(binding.value) for binding in bindings_of(last["main"])]
    assert names.count("permute_dims") == 2  # of the input and the output
    legal = legalize(last, make_target(target, 1))
    np.testing.assert_array_equal(interpret(legal, inputs)[0], expected)
    scaled = [op_name(binding.value) for binding in bindings_of(legal["main"])].count("qnn.requantize")
    assert scaled == (2 if target == "haswell" else 3)  # the model's own, and the shift of its input
    piped = qnn_pipeline(mod, make_target(target, 1))
    labels = [str(f.attrs[COMPOSITE]) for f in piped.functions.values() if f.attrs and COMPOSITE in f.attrs]
    assert sum("conv2d_accumulate" in label and label.endswith("distance") for label in labels) == 2
    np.testing.assert_array_equal(compile_and_run(mod, "native", inputs)[0], expected)


# ---- lists that had drifted --------------------------------------------------------------------------------------


def test_scales_per_channel_of_a_simulated_quantize_move_with_their_axis(rng):
    """Behind a reshape, where five scales of axis 1 meet a last axis of five."""
    scales = constant(rng.uniform(0.01, 0.1, 5).astype(np.float32))

    def body(emit: Callable, x: Any, code: Any) -> Any:
        shaped = emit(R.reshape(x, (2, 5, 5)))
        return qnn.simulated_quantize(shaped, code, scales, constant(np.zeros(5, np.int32)), axis=1)

    mod = module([((10, 5), "float32"), ((), "int32")], body)
    inputs = [rng.normal(0, 2, (10, 5)).astype(np.float32), np.asarray(1, np.int32)]
    np.testing.assert_array_equal(interpret(sink_reshapes(mod), inputs)[0], interpret(mod, inputs)[0])


def test_scales_along_the_rows_of_images_do_not_survive_their_pooling(rng):
    """A maximum over pixels compares rows that have different scales."""
    scales = constant(np.array([0.01, 0.4, 0.02, 0.3], np.float32))

    def body(emit: Callable, x: Any) -> Any:
        real = emit(qnn.dequantize(x, scales, constant(np.zeros(4, np.int32)), axis=1))
        return R.nn.max_pool2d(real, (2, 2), (1, 1), (0, 0, 1, 1), layout="NHWC")

    mod = module([((1, 4, 4, 3), "int8")], body)
    inputs = inputs_of(rng, mod)
    np.testing.assert_array_equal(interpret(qdq_to_integer(mod)[0], inputs)[0], interpret(mod, inputs)[0])
