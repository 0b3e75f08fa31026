"""Bias correction: the mean error that quantized weights make is measured on data and taken from the bias."""

from dataclasses import replace

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

import qnn_ext
from qnn_ext.errors import QuantizationError
from qnn_ext.op.base import constant, definition_of
from qnn_ext.op.observe import OBSERVE
from qnn_ext.passes.rewrite import rewrite
from qnn_ext.quantize import quantize, stages
from qnn_ext.quantize.annotate import annotate, sites
from qnn_ext.quantize.bias_correction import correct_bias, corrected, mean_errors
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.ranges import Range, qparams_of
from qnn_ext.quantize.table import CalibrationTable
from qnn_ext.quantize.weights import weight_range
from tests.quantize.networks import float_module

CONFIG = QConfig(nbit_weight=3, dtype_input="uint8")


def dense(rng, with_bias):
    w = rng.normal(size=(20, 6)).astype(np.float32)
    bias = relax.const(rng.normal(size=6).astype(np.float32))

    def body(emit, x):
        y = emit(relax.op.matmul(x, relax.const(w)))
        return emit(relax.op.add(y, bias)) if with_bias else y

    return float_module((1, 20), body)


def convolution(rng, with_bias, groups=1):
    w = rng.normal(size=(6, 4 // groups, 3, 3)).astype(np.float32)
    bias = relax.const(rng.normal(size=(1, 6, 1, 1)).astype(np.float32))

    def body(emit, x):
        y = emit(relax.op.nn.conv2d(x, relax.const(w), padding=1, groups=groups))
        return emit(relax.op.add(y, bias)) if with_bias else y

    return float_module((1, 4, 5, 5), body)


MODULES = {"dense": dense, "conv2d": convolution, "grouped": lambda rng, with_bias: convolution(rng, with_bias, 2)}


def table_of(annotated):
    ranges = {
        site.name: Range(0.0, 1.0) if site.value is None else weight_range(site.value, site.axis, bits=site.bits)
        for site in sites(annotated)
    }
    return CalibrationTable(ranges)


def with_quantized_weights(module):
    """The float module whose weights have their quantization error."""
    found = {site.name: site for site in sites(module)}
    table = table_of(module)

    def rule(value, emit):
        if definition_of(value) is not OBSERVE:
            return None
        site = found[str(value.attrs["site"])]
        if site.value is None:
            return value.args[0]
        qparams = qparams_of(table[site.name], site.dtype, site.bits, site.symmetric, axis=site.axis)
        return constant(qparams.dequantize(qparams.quantize(site.value)))

    return replace(module, ir=rewrite(module.ir, rule))


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("kind", MODULES)
def test_means_agree(kind, with_bias, rng):
    module = MODULES[kind](rng, with_bias)
    data = rng.uniform(0, 1, size=(40, *module.inputs[0].shape[1:])).astype(np.float32)
    annotated = annotate(module, CONFIG)
    corrected = correct_bias(annotated, table_of(annotated), data, CONFIG)

    def channel_means(one):
        run = qnn_ext.Interpreter(one)
        results = np.concatenate([run(sample[None]) for sample in data])
        return results.mean(axis=(0, 2, 3)) if results.ndim == 4 else results.mean(axis=0)

    exact = channel_means(module)
    before = np.abs(channel_means(with_quantized_weights(annotated)) - exact)
    after = np.abs(channel_means(with_quantized_weights(corrected)) - exact)
    assert before.max() > 0.05, "three bits have errors to correct"
    np.testing.assert_allclose(after, 0, atol=1e-5)


def test_nothing_else_changes(rng):
    annotated = annotate(dense(rng, True), CONFIG)
    corrected = correct_bias(annotated, table_of(annotated), rng.uniform(size=(5, 20)).astype(np.float32), CONFIG)
    assert [site.name for site in sites(corrected)] == [site.name for site in sites(annotated)]
    for one, two in zip(sites(annotated), sites(corrected), strict=True):
        if one.value is not None:
            np.testing.assert_array_equal(one.value, two.value)


def test_empty_data(rng):
    annotated = annotate(dense(rng, True), CONFIG)
    with pytest.raises(QuantizationError, match="empty"):
        correct_bias(annotated, table_of(annotated), [], CONFIG)


def test_cautious_errors_are_those_that_stand_out(rng):
    """Each batch is a measurement: ε · max(0, 1 − s² / ε²)."""
    annotated = annotate(dense(rng, True), CONFIG)
    centered = rng.normal(size=(4000, 20)).astype(np.float32)
    for data, kept in ((centered, 0.5), (centered[:8], 0.7), (centered + 10, 1.0)):
        full, cautious = (
            np.array(mean_errors(annotated, table_of(annotated), data, CONFIG, cautious=flag).get(0, np.zeros(6)))
            for flag in (False, True)
        )
        ratio = cautious / full
        assert ((ratio >= 0) & (ratio <= 1)).all()
        if kept == 1.0:
            assert (ratio > 0.99).all()
        else:
            assert np.square(cautious).sum() < kept * np.square(full).sum()
    assert mean_errors(annotated, table_of(annotated), centered[:1], CONFIG, cautious=True) == {}


def test_auto_corrects_what_the_data_show_and_keeps_it_in_the_table(rng, tmp_path):
    module = dense(rng, True)
    data = rng.uniform(0, 1, size=(40, 20)).astype(np.float32)
    fields = {"nbit_weight": 3, "smooth": None, "equalize": False, "bias_correction": "auto"}

    def offset(integers):
        engine = qnn_ext.build(integers)
        exact = qnn_ext.Interpreter(module)
        return np.abs(np.mean([engine(row[None]) - exact(row[None]) for row in data], axis=0)).max()

    done = stages(module, dataset=data, config=QConfig(**fields))
    plain = stages(module, dataset=data, config=QConfig(**{**fields, "bias_correction": False}))
    assert offset(done.result) < 0.3 * offset(plain.result)
    done.table.save(tmp_path / "table.json")
    again = quantize(module, table=tmp_path / "table.json", config=QConfig(**fields))
    assert tvm_ffi.structural_equal(again.ir, done.result.ir)
    assert not plain.table.biases
    named = stages(module, dataset=data, config=QConfig(**fields, calibrate_mode="minmax"))
    assert not named.table.biases, "only where the calibrator is auto as well"


@pytest.mark.parametrize(
    ("biases", "message"), [({3: [0.0]}, "product 3 has 1, .* is missing"), ({0: [1.0]}, "product 0 has 1, .* has 6")]
)
def test_biases_of_another_model(biases, message, rng):
    with pytest.raises(QuantizationError, match=message):
        corrected(annotate(dense(rng, True), CONFIG), biases)
