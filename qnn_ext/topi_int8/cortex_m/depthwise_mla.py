"""Depthwise convolutions on cores without DSP instructions: one channel of up to five neighbouring pixels at a time.

    for row of pixels: the rows of input under it, padded, in lines of memory
        for five pixels, for channel: acc += x·w of all taps, then the epilogue

The windows of neighbouring pixels overlap: a value is loaded once for all of them, while the weights of three taps
stay in registers. For 3×3 taps five pixels take 75 instructions where there is mla: 21 values, 9 weights, 45 products.
Otherwise they take 184, as a product takes the place of an operand and is added by another instruction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from ...targets.families import CORTEX_M
from ...targets.features import offers
from ..cpu.llvm_functions import define_routine
from ..refusal import other_dtypes
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload
from .depthwise import COPY, Rows, compute, initial, pack_weight, schedule_rows
from .registration import cheapest

Expr = Any

MLA = CORTEX_M.product("mla")
MOST = 5  # sums in registers
MOST_TAPS = 25
EPILOGUE = 20  # instructions, about, of a sum
FAR = 4095  # bytes that an address may be apart from its register
_SUMS = [f"r{number}" for number in range(8, 8 + MOST)]
_LOW = [f"r{number}" for number in range(3, 3 + MOST)]
_WEIGHTS = ["r4", "r5", "r6"]


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target) -> None:
    """The nest over rows, pixels and channels."""
    schedule_rows(sch, workload, target, MlaRows if offers(target, MLA) else MulsRows)


class MlaRows(Rows):
    """With mla."""

    lanes = 1
    copy = COPY
    mla = True

    @classmethod
    def pixels(cls, workload: Conv2dWorkload) -> int:
        """Those that take the fewest instructions."""
        width, (height, taps) = workload.out_width, workload.kernel
        costs = {}
        for pixels in range(1, min(MOST, width) + 1):
            groups = _groups(pixels, taps, workload.strides[1], workload.dilation[1])
            row = sum(len(group.columns) + len(group.taps) + pixels * len(group.taps) for group in groups)
            costs[pixels, 1] = height * row + pixels * EPILOGUE
        return cheapest(costs, width, 1)[0]

    def _taps(self, first: Expr, channel: Expr, block: Expr) -> Iterator[tirx.Stmt]:
        workload = self._workload
        steps = workload.strides[1], workload.dilation[1]
        routine = _routine(self._pixels, workload.kernel, steps, self._between()[0], workload.in_channels, self.mla)
        yield self._add(routine, first, channel, block)


class MulsRows(MlaRows):
    """With muls."""

    copy = define_routine(
        "copy_few_words",
        [
            *("subs r3, r3, #12", "blt 2f", "1:", "ldm r1!, {r2, r4, r5}", "stm r0!, {r2, r4, r5}", "subs r3, r3, #12"),
            *("bge 1b", "2:", "adds r3, r3, #12", "beq 4f", "3:", "ldm r1!, {r2}", "stm r0!, {r2}", "subs r3, r3, #4"),
            *("bne 3b", "4:"),
        ],
        "={r0},={r1},={r2},={r3},0,1,2,3,~{r4},~{r5},~{cc},~{memory}",
        ("ptr", "ptr", "ptr", "i32"),
    )
    mla = False


# ---- the taps of a channel ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Group:
    """Taps of a row whose weights are held together. columns: column -> the (pixel, tap of the group) that read it."""

    taps: range
    columns: dict[int, list[tuple[int, int]]]


def _groups(pixels: int, taps: int, stride: int, dilation: int) -> list[_Group]:
    groups = []
    for first in range(0, taps, len(_WEIGHTS)):
        held = range(first, min(first + len(_WEIGHTS), taps))
        columns: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(pixels):
            for tap in held:
                columns.setdefault(pixel * stride + tap * dilation, []).append((pixel, tap - first))
        groups.append(_Group(held, dict(sorted(columns.items()))))
    return groups


# r0: address of the lines, r1: of the weights, r3: a value; sums in r8 to r12, which base Thumb can add to and move.


@cache
def _routine(pixels: int, kernel: tuple[int, int], steps: tuple[int, int], down: int, channels: int, mla: bool) -> str:
    """routine(lines, weights, int32 sums[pixels]): adds the products of all taps.

    steps: columns from pixel to pixel and from tap to tap; down, channels: bytes from a row of taps, or a column, to
    the next. r6 and r7, which may hold the frame's address, are put back.
    """
    (height, width), (stride, dilation) = kernel, steps
    groups = _groups(pixels, width, stride, dilation)
    code = (_code_with_mla if mla else _code_with_muls)(height, width, groups, down, channels)
    low, pairs = ", ".join(_LOW[:pixels]), list(zip(_LOW, _SUMS, strict=True))[:pixels]
    lines = [
        *("push {r2, r6, r7}", f"ldm r2!, {{{low}}}", *(f"mov {total}, {first}" for first, total in pairs)),
        *code,
        *(*(f"mov {first}, {total}" for first, total in pairs), "ldr r2, [sp]", f"stm r2!, {{{low}}}"),
        "pop {r2, r6, r7}",
    ]
    changed = [f"={{r{number}}}" for number in range(3)] + [str(number) for number in range(3)]
    lost = ",".join(f"~{{{name}}}" for name in ("r3", "r4", "r5", *_SUMS, "lr", "cc", "memory"))
    name = f"depthwise_{'mla' if mla else 'muls'}_{pixels}_{height}x{width}_{stride}_{dilation}_{down}_{channels}"
    return define_routine(name, lines, f"{','.join(changed)},{lost}", ("ptr",) * 3)


def _code_with_mla(height: int, width: int, groups: list[_Group], down: int, channels: int) -> Iterator[str]:
    for row in range(height):
        for group in groups:
            for weight, _ in zip(_WEIGHTS, group.taps, strict=False):
                yield f"ldrsb {weight}, [r1], #1"
            for column, readers in group.columns.items():
                yield f"ldrsb r3, [r0, #{column * channels}]"
                for pixel, tap in readers:
                    yield f"mla {_SUMS[pixel]}, r3, {_WEIGHTS[tap]}, {_SUMS[pixel]}"
        left = down if row + 1 < height else 0
        for part in range(0, left, FAR):
            yield f"addw r0, r0, #{min(FAR, left - part)}"


def _code_with_muls(height: int, width: int, groups: list[_Group], down: int, channels: int) -> Iterator[str]:
    """r2: 0, as bytes are loaded with their sign only by two registers; lr: bytes from column to column."""
    yield from ("movs r2, #0", *_constant("r3", channels), "mov lr, r3")
    place = 0  # of r0, in bytes from the first row
    for row in range(height):
        for group in groups:
            for weight, tap in zip(_WEIGHTS, group.taps, strict=False):
                yield f"ldrb {weight}, [r1, #{row * width + tap}]"
                yield f"sxtb {weight}, {weight}"
            for column, readers in group.columns.items():
                yield from _moved(row * down + column * channels - place, channels)
                place = row * down + column * channels
                yield "ldrsb r3, [r0, r2]"
                for pixel, tap in readers[:-1]:
                    yield from (f"mov r7, {_WEIGHTS[tap]}", "muls r7, r3, r7", f"add {_SUMS[pixel]}, r7")
                pixel, tap = readers[-1]
                yield from (f"muls r3, {_WEIGHTS[tap]}, r3", f"add {_SUMS[pixel]}, r3")


def _moved(distance: int, channels: int) -> Iterator[str]:
    """Moves r0 by so many bytes."""
    columns, rest = divmod(distance, channels)
    if not rest and 0 <= columns <= 3:
        yield from ["add r0, lr"] * columns
        return
    yield from _constant("r7", abs(distance))
    yield f"{'adds' if distance > 0 else 'subs'} r0, r0, r7"


def _constant(register: str, value: int) -> Iterator[str]:
    """Sets a register to a number of up to 16 bits."""
    yield f"movs {register}, #{value >> 8 or value}"
    if value >> 8:
        yield from (f"lsls {register}, {register}, #8", f"adds {register}, #{value & 255}")


def _refuses(workload: Conv2dWorkload, target: Target) -> str | None:
    """Why it does not take a workload."""
    (height, width), channels = workload.kernel, workload.in_channels
    if refused := other_dtypes(workload, ("int8",), ("int8",)):
        return refused
    if workload.multiplier > 1:
        return f"{workload.multiplier} output channels per input channel"
    if height * width > MOST_TAPS:
        return f"{height * width} taps"
    last = (width - 1) * workload.dilation[1] + (MOST - 1) * workload.strides[1]
    row = (workload.padding[1] + workload.width + workload.padding[3]) * channels
    return "values too far apart" if last * channels > FAR or workload.dilation[0] * row >= 1 << 16 else None


register(
    Conv2dWorkload,
    Implementation(
        name="depthwise_conv2d_nhwc_mla.cortex_m",
        priority=9,
        backends=(CORTEX_M,),
        compute=partial(compute, lanes=1),
        schedule=schedule,
        depthwise=True,
        floats=False,
        refuses=_refuses,
        pack_weight=partial(pack_weight, lanes=1),
        initial=initial,
        accumulator="sums",
    ),
)
