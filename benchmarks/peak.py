"""The machine's peak, see `qnn_ext.report.machine`, as runners that are measured in turns with the models."""

from __future__ import annotations

from qnn_ext.report.machine import dot_products, fastest_dot, reads
from qnn_ext.targets.names import make_target

from .runners import READS, Runner


def peak_runner(threads: int) -> Runner:
    """Calls of the fastest int8 dot-product instruction of this CPU; `work` is in operations, two per product.

    Raises LookupError where the CPU has none.
    """
    instruction = fastest_dot(make_target("native", threads))
    if instruction is None:
        raise LookupError("no dot-product instruction is known for this CPU")
    seconds, work = dot_products(instruction, threads)
    return Runner(f"peak ({instruction.name})", lambda inputs: [], seconds, work=work)


def read_runner(place: str, threads: int) -> Runner:
    """Sums over a buffer of the size that READS gives for `place`; `work` is in bytes."""
    seconds, moved = reads(READS[place], threads)
    return Runner(f"reads from {place}", lambda inputs: [], seconds, work=moved)
