"""SignalDelay, SignalFramer, SignalStacker and SignalOverlapAdd: TensorFlow Lite Micro's operators on a stream of
samples. What they keep between calls are states of `main`."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op.base import constant
from ..node import Node
from ..registry import converter
from .shape import check_elements
from .signal_spectrum import option, signal_input
from .terms import Term, joined


class Kept:
    """A tensor that a node keeps between calls."""

    def __init__(self, node: Node, name: str, initial: np.ndarray) -> None:
        place = f"{node.assembly.graph.index}.{node.operator.index}"  # names of tensors need not be unique
        self._variables, self._name = node.assembly.variables, f"{node.operator.name}.{place}.{name}"
        self.value = Term(node, self._variables.read(self._name, initial))

    def assign(self, value: Term) -> None:
        self._variables.values[self._name] = value.to(self.value.dtype).expr


def _lines(node: Node) -> Term:
    """The samples of int16 as (lines, samples of this call)."""
    data = signal_input(node, 0, "int16")
    return data.reshape(int(np.prod(data.shape[:-1], dtype=np.int64)), data.shape[-1])


def _followed(node: Node, samples: Term, kept: int) -> Term:
    """The last `kept` samples of the calls before, zeros at first, and those of this one."""
    if not kept:
        return samples
    lines, count = samples.shape
    check_elements(node, (lines, kept + count), "folded")
    state = Kept(node, "samples", np.zeros((lines, kept), np.int16))
    both = joined([state.value, samples], 1)
    state.assign(both.part(count, count + kept))
    return both


@converter("SignalDelay", max_version=1)
def convert_delay(node: Node) -> relax.Expr:
    """The samples of delay_length samples before."""
    samples = _lines(node)
    both = _followed(node, samples, option(node, "delay_length", 0, 1 << 30))
    return both.part(0, samples.shape[1]).reshape(*node.shape(0)).expr


@converter("SignalFramer", max_version=1)
def convert_framer(node: Node) -> list[relax.Expr]:
    """Frames of frame_size samples, every frame_step, and whether they are all there: with `prefill` they begin with
    zeros, else the first ones are missing. Those that are not there have zeros for samples not yet seen."""
    samples = _lines(node)
    lines, count = samples.shape
    size, step = (option(node, name, 1, 1 << 30) for name in ("frame_size", "frame_step"))
    if count % step:
        raise node.malformed(f"{count} samples in steps of {step}")
    if step > size:
        raise node.unsupported(f"frames of {size} samples, every {step}, which leave samples out")
    prefill = bool(option(node, "prefill", 0, 1))
    writes = -(-size // step)  # until the first frame is full
    kept = size - step if prefill else (writes - 1) * step
    frames = count // step
    places = np.arange(frames)[:, None] * step + np.arange(size)
    check_elements(node, (lines, *places.shape), "folded")
    result = _followed(node, samples, kept).taken(places.reshape(-1), axis=1)
    valid = Term(node, constant(np.array(True)))
    if not prefill and writes > 1:
        missing = Kept(node, "missing", np.array(writes - 1, np.int32))
        valid = missing.value.equals(0)
        missing.assign((missing.value - frames).at_least(0))
    return [result.reshape(*node.shape(0)[:-1], frames, size).expr, valid.expr]


@converter("SignalStacker", max_version=1)
def convert_stacker(node: Node) -> list[relax.Expr]:
    """The last left + 1 + right frames as one, and whether this call is one of every stacker_step that has a result.
    Before the first frame come copies of it. Results that are none hold what has been seen."""
    data = signal_input(node, 0, "int16", 1)
    channels, left, right = (
        option(node, name, 0, 1 << 20) for name in ("num_channels", "stacker_left_context", "stacker_right_context")
    )
    step, frames = option(node, "stacker_step", 1, 1 << 20), left + right + 1
    if data.shape != (channels,):
        raise node.malformed(f"a frame of shape {data.shape} for {channels} channels")
    if step > frames:
        raise node.unsupported(f"stacks of {frames} frames, every {step}, which leave frames out")
    check_elements(node, (frames, channels), "folded")
    frame = data.reshape(1, channels)
    stack = frame
    if frames > 1:
        kept = Kept(node, "frames", np.zeros((frames - 1, channels), np.int16))
        started = Kept(node, "started", np.array(False))
        before = started.value.where(kept.value, frame)
        started.assign(Term(node, constant(np.array(True))))
        stack = joined([before, frame], 0)
        kept.assign(stack.part(1, frames, 0))
    valid = Term(node, constant(np.array(True)))
    if right or step > 1:
        missing = Kept(node, "missing", np.array(right, np.int32))
        valid = missing.value.equals(0)
        missing.assign(valid.where(missing.value.number(step), missing.value) - 1)
    return [stack.reshape(frames * channels).expr, valid.expr]


@converter("SignalOverlapAdd", max_version=1)
def convert_overlap_add(node: Node) -> relax.Expr:
    """Frames added where they overlap, every frame_step samples; sums of int16 saturate one after another."""
    dtype, shape = node.dtype(0), node.shape(0)
    if dtype not in ("int16", "float32"):
        raise node.unsupported(f"frames of {dtype}; of int16 and float32 there are kernels")
    data = signal_input(node, 0, dtype)
    if len(shape) < 2:
        raise node.malformed(f"frames of shape {shape}")
    *lead, frames, size = shape
    lines = int(np.prod(lead, dtype=np.int64))
    step = option(node, "frame_step", 1, size)
    check_elements(node, (lines, frames, size), "folded")
    sums = Kept(node, "sums", np.zeros((lines, size), dtype))
    blank = Term(node, constant(np.zeros((lines, step), dtype)))
    total, results = sums.value, []
    for frame in np.arange(frames):
        added = data.reshape(lines, frames, size).part(int(frame), int(frame) + 1, 1).reshape(lines, size)
        total = (total.to("int32") + added.to("int32")).saturated(dtype) if dtype == "int16" else total + added
        results.append(total.part(0, step))
        total = joined([total.part(step, size), blank], 1) if step < size else blank
    sums.assign(total)
    return joined(results, 1).reshape(*lead, frames * step).expr
