"""The conformance data loads, covers every operator it promises, and LiteRT still gives the recorded outputs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from .cases import Case, load_cases, load_not_allowed

INTEGER_OPERATORS = """
CONV_2D DEPTHWISE_CONV_2D TRANSPOSE_CONV FULLY_CONNECTED BATCH_MATMUL AVERAGE_POOL_2D MAX_POOL_2D MEAN SUM REDUCE_MAX
REDUCE_MIN REDUCE_PROD ADD SUB MUL DIV SQUARED_DIFFERENCE MAXIMUM MINIMUM EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER
GREATER_EQUAL SELECT SELECT_V2 CONCATENATION SPLIT SPLIT_V PACK UNPACK RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE SLICE
STRIDED_SLICE GATHER GATHER_ND TILE PAD PADV2 MIRROR_PAD SPACE_TO_DEPTH DEPTH_TO_SPACE SPACE_TO_BATCH_ND
BATCH_TO_SPACE_ND RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR SOFTMAX LOG_SOFTMAX LOGISTIC TANH HARD_SWISH GELU ELU RELU
RELU6 RELU_N1_TO_1 RELU_0_TO_1 LEAKY_RELU PRELU EXP LOG SQRT RSQRT ABS NEG CAST ARG_MAX ARG_MIN ONE_HOT TOPK_V2
L2_NORMALIZATION REVERSE_V2 BROADCAST_TO SHAPE FILL RANK QUANTIZE DEQUANTIZE UNIDIRECTIONAL_SEQUENCE_LSTM SVDF
READ_VARIABLE ASSIGN_VARIABLE TFLite_Detection_PostProcess
"""
OTHER_OPERATORS = """
REDUCE_ANY REDUCE_ALL LOGICAL_AND LOGICAL_OR LOGICAL_NOT CEIL FLOOR ROUND SIN COS POW SQUARE SIGN FLOOR_DIV FLOOR_MOD
L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION CUMSUM RANGE ADD_N ZEROS_LIKE FAKE_QUANT VAR_HANDLE
"""
SAMPLE = 60


def test_every_operator_is_present() -> None:
    present = {case.operator for case in load_cases()}
    assert set((INTEGER_OPERATORS + OTHER_OPERATORS).split()) <= present


def test_integer_operators_have_int8_cases_or_a_reason() -> None:
    covered = {case.operator for case in load_cases(dtype="int8")}
    refused = {name.split("/")[0] for name in load_not_allowed() if name.split("/")[1] == "int8"}
    assert set(INTEGER_OPERATORS.split()) <= covered | refused


def test_names_are_unique_and_refused_ones_absent() -> None:
    names = [case.name for case in load_cases()]
    assert len(names) == len(set(names))
    assert not set(names) & set(load_not_allowed())


def test_every_case_loads() -> None:
    for case in load_cases():
        assert case.model[4:8] == b"TFL3", case.name
        assert len(case.inputs) == len(case.reference) == case.trials, case.name
        assert case.default_error or len(case.default) == case.trials, case.name
        for outputs in case.reference:
            assert len(outputs) == case.output_count, case.name


def check_outputs(case: Case, found: list[list[np.ndarray]], expected: list[list[np.ndarray]]) -> None:
    """Integers exactly; floats to rounding, as libraries of different machines differ in the last bits."""
    for found_trial, expected_trial in zip(found, expected, strict=True):
        for one, two in zip(found_trial, expected_trial, strict=True):
            assert one.dtype == two.dtype and one.shape == two.shape, case.name
            if np.issubdtype(two.dtype, np.floating):
                np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5, err_msg=case.name)
            else:
                np.testing.assert_array_equal(one, two, err_msg=case.name)


def test_sample_reproduces() -> None:
    pytest.importorskip("ai_edge_litert")
    from .tflite_models.runner import define, invoke

    for case in random.Random(0).sample(load_cases(), SAMPLE):
        goldens = {case.reference_kernels: case.reference} | ({} if case.default_error else {"default": case.default})
        for kernels, expected in goldens.items():
            found = invoke(case.model, case.inputs, kernels, case.stateful)
            check_outputs(case, define(found, case.counted_by), expected)
