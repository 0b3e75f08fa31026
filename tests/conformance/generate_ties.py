"""Finds near-ties of all conformance cases with LiteRT: python -m tests.conformance.generate_ties

Takes ai-edge-litert and some minutes. The same cases give the same file.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np

from .cases import Case, load_cases
from .ties import NearTie, Ties, with_scale, write_ties

EACH = 2  # near-ties for each of the first scales
SCALES = 2
SPAN = 1.25  # scales up to this factor are searched
TIME_LIMIT_S = 120
COMPUTES_IN_INTEGERS = ("int8", "uint8", "int16")

Run = Callable[[int, int], list[np.ndarray]]  # (offset, bits) -> the outputs of the last trial


def scale_offsets(model: bytes) -> Iterator[int]:
    """Where the file has the scales of its outputs, then of its inputs, unless they are per channel."""
    from ai_edge_litert import schema_py_generated as schema

    content = np.frombuffer(bytearray(model), np.uint8)
    graph = schema.Model.GetRootAs(content, 0).Subgraphs(0)
    seen = set()
    for index in [*graph.OutputsAsNumpy(), *graph.InputsAsNumpy()]:
        quantization = graph.Tensors(int(index)).Quantization()
        if quantization is None or quantization.ScaleLength() != 1:
            continue
        offset = quantization.ScaleAsNumpy().ctypes.data - content.ctypes.data
        if offset not in seen:
            seen.add(offset)
            yield offset


def bisect(run: Run, offset: int, output: int, element: int, first: int, last: int) -> NearTie:
    """The neighbouring scales between `first` and `last`, where the element differs, at which it jumps."""

    def value(bits: int) -> int:
        return int(run(offset, bits)[output].reshape(-1)[element])

    before, after = value(first), value(last)
    while last - first > 1:
        middle = (first + last) // 2
        if (found := value(middle)) == before:
            first = middle
        else:
            last, after = middle, found
    return NearTie(offset, output, element, first, before, after)


def near_ties(case: Case, kernels: str) -> list[NearTie]:
    """`EACH` near-ties for the first scales that LiteRT lets vary."""
    from .tflite_models.runner import invoke

    model, trials = case.model, case.inputs if case.stateful else case.inputs[-1:]

    def run(offset: int, bits: int) -> list[np.ndarray]:
        return invoke(with_scale(model, offset, bits), trials, kernels, case.stateful)[-1]

    rng, found, used = np.random.default_rng(list(case.name.encode())), [], 0
    for offset in scale_offsets(model):
        scale = np.frombuffer(model, np.float32, 1, offset)[0]
        first, last = (int(np.float32(end).view(np.uint32)) for end in (scale, scale * np.float32(SPAN)))
        try:
            low, high = run(offset, first), run(offset, last)
        except RuntimeError:  # this scale must be that of another tensor, or a power of two
            continue
        jumps = [
            (output, int(element))
            for output, (one, two) in enumerate(zip(low, high, strict=True))
            if one.dtype.kind in "iub"
            for element in np.flatnonzero(one != two)
        ]
        rng.shuffle(jumps)
        found += [bisect(run, offset, *jump, first, last) for jump in jumps[:EACH]]
        used += bool(jumps)
        if used == SCALES:
            break
    return found


def _child(pipe: Connection, case: Case, kernels: str) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    pipe.send(near_ties(case, kernels))


def isolated(case: Case, kernels: str) -> tuple[NearTie, ...]:
    """`near_ties` in a child process: LiteRT may crash with a scale that no converter writes."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, case, kernels))
    process.start()
    sender.close()
    try:
        found = tuple(receiver.recv()) if receiver.poll(TIME_LIMIT_S) else ()
    except EOFError:
        found = ()
    process.kill()
    process.join()
    return found


def main() -> None:
    """Write the near-ties of every case that computes in integers."""
    found = {}
    for case in load_cases():
        if case.dtype not in COMPUTES_IN_INTEGERS and case.operator != "QUANTIZE":
            continue
        ties = Ties(isolated(case, case.reference_kernels), isolated(case, "default") if case.default else ())
        if ties.reference or ties.default:
            found[case.name] = ties
    write_ties(found)
    print(f"{sum(len(t.reference) + len(t.default) for t in found.values())} near-ties of {len(found)} cases")


if __name__ == "__main__":
    main()
