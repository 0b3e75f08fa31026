"""Goals: latency of the best peer over ours, by model. Only the benchmark's table knows these names."""

from __future__ import annotations

from dataclasses import dataclass

from .architectures import ARCHITECTURES


@dataclass(frozen=True)
class Goal:
    """Ratios of latency, best peer over ours."""

    must: float
    aim: float

    def verdict(self, ratio: float) -> str:
        """How a ratio compares to its goal."""
        if ratio >= self.aim:
            return "aim met"
        return "met" if ratio >= self.must else "missed"


OTHERS = Goal(1.0, 1.2)
GOALS = {
    "resnet50.onnx-static": Goal(1.10, 1.20),
    "tf2_mobilenet_v2_1.0_224_ptq": Goal(1.15, 1.40),
    "mobilenetv2_u8s8": Goal(1.15, 1.40),
    "mobilenet_v2.onnx-static": Goal(1.15, 1.40),
    "mobilenet_v1_0.75_192_quant": Goal(2.0, 3.0),
    "mobilenet_v2_1.0_224_quant": Goal(2.0, 3.0),
    "deeplabv3_mnv2_dm05_pascal_quant": Goal(1.8, 2.5),
    "vww_96_int8": Goal(1.1, 1.5),
    "kws_ref_model": Goal(1.1, 1.5),
    "pretrainedResnet_quant": Goal(1.1, 1.5),
    "ad01_int8": Goal(1.0, 1.3),
    "bert_base.onnx-static": Goal(1.05, 1.25),
    "vit_b_32.onnx-static": Goal(1.05, 1.25),
    "bert_base.onnx-dynamic": Goal(1.2, 1.4),
    "vit_b_32.onnx-dynamic": Goal(1.05, 1.3),
    **dict.fromkeys(ARCHITECTURES, Goal(1.1, 1.2)),
}


def goal_of(model: str) -> Goal:
    """The goal for a model, named by its file name without the suffix."""
    return GOALS.get(model, OTHERS)
