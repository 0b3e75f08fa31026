"""The machine's peak, see `qnn_ext.report.machine`, as runners that are measured in turns with the models."""

from __future__ import annotations

from qnn_ext.report.machine import dot_products, fastest, reads
from qnn_ext.targets.names import make_target

from .runners import READS, Runner


def peak_runner(arithmetic: str, threads: int) -> Runner:
    """Calls of this CPU's fastest multiply-add of a kind in ARITHMETIC; `work` is in operations, two per product.

    Raises LookupError where none is known.
    """
    instruction = fastest(arithmetic, make_target("native", threads))
    if instruction is None:
        raise LookupError(f"no instruction for products of {arithmetic} is known for this CPU")
    seconds, work = dot_products(instruction, threads)
    return Runner(instruction.name, lambda inputs: [], seconds, work=work)


def read_runner(place: str, threads: int) -> Runner:
    """Sums over a buffer of the size that READS gives for `place`; `work` is in bytes."""
    seconds, moved = reads(READS[place], threads)
    return Runner(f"reads from {place}", lambda inputs: [], seconds, work=moved)
