"""Results next to midpoints, see `ties.py`: equal to LiteRT's on both sides, but for what `check_ties.py` lists."""

from __future__ import annotations

import random

import numpy as np
import pytest

from .cases import load_cases
from .check_ties import CASES, DEVIATIONS, NUMERICS, OPERATORS, differences
from .ties import load_ties

# what moves values, and what LiteRT lets have only equal or prescribed scales
WITHOUT = """
ARG_MAX ARG_MIN BATCH_TO_SPACE_ND BROADCAST_TO CAST DEPTH_TO_SPACE DEQUANTIZE EXPAND_DIMS FILL FLOOR_DIV FLOOR_MOD
GATHER GATHER_ND L2_NORMALIZATION MAXIMUM MINIMUM MIRROR_PAD NEG ONE_HOT PACK PAD PADV2 RANK READ_VARIABLE REDUCE_MAX
REDUCE_MIN RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 SELECT SELECT_V2 SHAPE SLICE SPACE_TO_BATCH_ND
SPACE_TO_DEPTH SPLIT SPLIT_V SQUEEZE STRIDED_SLICE TFLite_Detection_PostProcess TILE TOPK_V2 TRANSPOSE UNPACK
"""


@pytest.mark.parametrize("kernels", NUMERICS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_near_ties(operator, kernels, thorough):
    cases = [case for case in CASES.values() if case.operator == operator]
    if not thorough:  # one of them, another for each operator
        cases = cases[OPERATORS.index(operator) % len(cases) :][:1]
    problems = []
    for case in cases:
        allowed = int((operator, case.dtype, kernels) in DEVIATIONS)
        for tie, difference in differences(case, kernels, None if thorough else 1):
            if abs(difference) > allowed:
                problems.append(f"{case.name}: {tie}: {difference:+}")
    assert not problems, "\n".join(problems[:20])


@pytest.mark.exhaustive("test_near_ties, which would not notice that nothing deviates any more")
@pytest.mark.parametrize("key", DEVIATIONS, ids="-".join)
def test_deviation_is_still_there(key):
    operator, dtype, kernels = key
    assert any(differences(case, kernels, None) for case in load_cases(operator, dtype) if case.name in CASES)


def test_every_operator_that_rescales_has_near_ties():
    assert {case.operator for case in load_cases(dtype="int8")} - set(OPERATORS) == set(WITHOUT.split())


def test_sample_reproduces():
    pytest.importorskip("ai_edge_litert")
    from .tflite_models.runner import invoke

    for case in random.Random(1).sample(list(CASES.values()), 40):
        ties, trials = load_ties()[case.name], case.inputs if case.stateful else case.inputs[-1:]
        for kernels, found in ((case.reference_kernels, ties.reference), ("default", ties.default)):
            for tie in found[:1]:
                for model, expected in tie.sides(case.model):
                    outputs = invoke(model, trials, kernels, case.stateful)[-1]
                    assert outputs[tie.output].reshape(-1)[tie.element] == expected, case.name


def test_a_near_tie_has_two_neighbouring_scales():
    for name, ties in load_ties().items():
        for tie in (*ties.reference, *ties.default):
            assert tie.before != tie.after, name
            below, above = (
                np.frombuffer(model, np.float32, 1, tie.offset)[0] for model, _ in tie.sides(CASES[name].model)
            )
            assert above == np.nextafter(below, np.float32(np.inf)), name
