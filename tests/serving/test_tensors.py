"""Requests as arrays, and batches divided among streams, without a server."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError, QnnError
from qnn_ext.module import TensorSpec
from qnn_ext.qparams import QParams
from qnn_ext.serving import tensors
from tests.cases.bundled import module_of
from tests.serving.models import IMAGES

QUANTIZED = TensorSpec("x", (1, 2), "int8", QParams(np.float32(0.5), np.int32(3), "int8"))


@pytest.fixture(scope="module")
def engine():
    return qnn_ext.build(module_of("digits_cnn_float32.onnx"), num_threads=1)


@pytest.fixture(scope="module")
def pool(engine):
    with qnn_ext.Pool(engine, streams=2) as pool:
        yield pool


def test_datatypes():
    names = {"bool": "BOOL", "uint8": "UINT8", "int64": "INT64", "float16": "FP16", "float32": "FP32"}
    assert {name: tensors.datatype(name) for name in names} == names
    assert tensors.datatype(np.dtype(np.int8)) == "INT8"
    with pytest.raises(QnnError, match="no tensors of bfloat16"):
        tensors.datatype("bfloat16")


def test_a_batch_of_any_size_has_minus_one_where_it_is():
    specs = [TensorSpec("a", (1, 3), "float32", None, True), TensorSpec("b", (5, 1), "int8", None, True, 1)]
    assert [one["shape"] for one in tensors.described([*specs, QUANTIZED])] == [[-1, 3], [5, -1], [1, 2]]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_batch(engine, pool, count):
    assert engine.inputs[0].dynamic_batch
    images = np.concatenate(IMAGES["float"][:count])
    values = {engine.inputs[0].name: images}
    found = asyncio.run(tensors.answer(pool, engine.inputs, engine.outputs, values, False))
    expected = engine.run(values)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


def test_instances(engine, pool):
    images = np.concatenate(IMAGES["float"][:3])
    payload = {"instances": images.tolist()}
    found = asyncio.run(tensors.answer_instances(pool, engine.inputs, engine.outputs, payload))
    assert np.array_equal(found[engine.outputs[0].name], engine(images))


def test_instances_become_the_inputs_integers():
    assert tensors.of_instances({"instances": [[1, -128]]}, [QUANTIZED]).tolist() == [[1, -128]]
    found = tensors.of_instances({"instances": [[1.0, 0.0], [100, -0.5]]}, [QUANTIZED])
    assert found.dtype == np.int8 and found.tolist() == [[5, 3], [127, 2]]


@pytest.mark.parametrize(
    ("instances", "said"),
    [
        ([[1, 200]], "values that int8 does not have"),
        ([[1, 2, 3]], r"shape \(2,\), found \(3,\)"),
        ([[1, 2], [3]], "no array"),
        ([["a", "b"]], "must be int8"),
        ([[float("nan"), 1.0]], "NaN"),
        ([], "a V1 request is"),
        (3, "a V1 request is"),
        ({}, "a V1 request is"),
    ],
)
def test_instances_that_are_wrong(instances, said):
    with pytest.raises(InputError, match=said):
        tensors.of_instances({"instances": instances}, [QUANTIZED])


def test_models_that_v1_does_not_suit(engine, pool):
    for inputs in ([QUANTIZED, QUANTIZED], [], [replace(QUANTIZED, shape=())]):
        with pytest.raises(InputError, match="for a model with one input"):
            tensors.of_instances({"instances": [[1, 2]]}, inputs)
    with pytest.raises(InputError, match="takes 4 instances at a time, found 3"):
        tensors.of_instances({"instances": [[1, 2]] * 3}, [replace(QUANTIZED, shape=(4, 2))])
    other = [TensorSpec("whole", (10,), "float32")]
    with pytest.raises(InputError, match="answers instance by instance, but this model has whole: 10 float32"):
        payload = {"instances": IMAGES["float"][0].tolist()}
        asyncio.run(tensors.answer_instances(pool, engine.inputs, other, payload))
