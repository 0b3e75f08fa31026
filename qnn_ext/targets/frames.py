"""How large compiled code is, and how many bytes of stack it takes.

The stack is read from the instructions with which functions start. What compilers write there is of few forms:
registers are pushed, then the stack pointer is lowered by a constant. Each architecture has a function that adds up by
how much the first instructions lower it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .elf import AARCH64, ARM, RISCV, X86_64, Object

_LOOKED_AT = 160  # bytes from the start of a function


@dataclass(frozen=True)
class CodeSize:
    """What a model's code takes.

    flash:   bytes of instructions and the constants among them, without the weights
    largest: bytes of the largest kernel, and kernel: its name
    stack:   bytes of stack of the deepest chain of calls, without what the C library's functions take; 0 if unknown
    chain:   the functions of that chain
    """

    flash: int
    largest: int
    kernel: str
    stack: int
    chain: tuple[str, ...]


def code_size(files: Sequence[Object], entries: Sequence[str]) -> CodeSize:
    """The size of a program's code, whose functions `entries` call each other in turn, the last one all kernels. Those
    of them that compilers put into their callers are left out."""
    functions: list[tuple[str, int, int]] = []
    for file in files:
        frames = frames_of(file)
        functions += [(name, len(code), frames.get(name, 0)) for name, code in file.functions.items()]
    called = [one for name in entries for one in functions if one[0] == name]
    kernels = [one for one in functions if one[0] not in entries and not one[0].startswith("__")]
    name, largest, _ = max(kernels, key=lambda one: one[1], default=("", 0, 0))
    chain = [*called, *([max(kernels, key=lambda one: one[2])] if kernels else [])]
    stack = sum(frame for _, _, frame in chain)
    flash = sum(file.code_bytes for file in files)
    return CodeSize(flash, largest, name, stack, tuple(name for name, _, _ in chain))


def frames_of(file: Object) -> dict[str, int]:
    """The bytes of stack that each function of an object file takes for itself, return address included; empty for an
    architecture that is not known."""
    read = _thumb if file.is_thumb else _READERS.get(file.machine)
    return {} if read is None else {name: read(code[:_LOOKED_AT]) for name, code in file.functions.items()}


def _x86(code: bytes) -> int:
    total, place = 8, 0  # the return address
    while place < len(code):
        if 0x50 <= code[place] <= 0x57:  # push
            total, place = total + 8, place + 1
        elif code[place] == 0x41 and 0x50 <= code[place + 1] <= 0x57:
            total, place = total + 8, place + 2
        elif code[place : place + 3] == b"\x48\x89\xe5":  # mov rbp, rsp
            place += 3
        else:
            break
    lowered = code.find(b"\x48\x81\xec"), code.find(b"\x48\x83\xec")  # sub rsp, of 32 or 8 bits
    if lowered[0] >= 0:
        total += struct.unpack_from("<I", code, lowered[0] + 3)[0]
    elif lowered[1] >= 0:
        total += code[lowered[1] + 3]
    aligned = code.find(b"\x48\x83\xe4")  # and rsp
    return total + (-code[aligned + 3] & 0xFF if aligned >= 0 else 0)


def _words(code: bytes) -> Iterator[int]:
    return (word for (word,) in struct.iter_unpack("<I", code[: len(code) // 4 * 4]))


def _aarch64(code: bytes) -> int:
    total, constant = 0, 0
    for word in _words(code):
        if word & 0xFF8003FF == 0xD10003FF:  # sub sp, sp, #
            total += (word >> 10 & 0xFFF) << (12 if word >> 22 & 1 else 0)
        elif word & 0xBFC003E0 in (0xA98003E0, 0x2D8003E0):  # stp x, x or d, d, [sp, #-]!
            total += 8 * (0x80 - (word >> 15 & 0x7F))
        elif word & 0xFFE00FE0 == 0xF8000FE0:  # str x, [sp, #-]!
            total += 0x200 - (word >> 12 & 0x1FF)
        elif word & 0xFFE00000 == 0xD2800000:  # mov x, #
            constant = word >> 5 & 0xFFFF
        elif word & 0xFFE0FFFF == 0xCB2063FF:  # sub sp, sp, x
            total += constant
        elif word == 0xD65F03C0:  # ret
            break
    return total


def _arm(code: bytes) -> int:
    total = 0
    for word in _words(code):
        if word & 0xFFFF0000 == 0xE92D0000:  # push
            total += 4 * (word & 0xFFFF).bit_count()
        elif word & 0xFFFF0FFF == 0xE52D0004:  # push of one
            total += 4
        elif word & 0xFFBF0F00 == 0xED2D0B00:  # vpush
            total += 4 * (word & 0xFF)
        elif word & 0xFFFFF000 == 0xE24DD000:  # sub sp, sp, #
            value, turn = word & 0xFF, 2 * (word >> 8 & 0xF)
            total += (value >> turn | value << (32 - turn)) & 0xFFFFFFFF
        elif word in (0xE12FFF1E,) or word & 0xFFFF8000 == 0xE8BD8000:  # bx lr, pop with pc
            break
    return total


def _halves(code: bytes) -> Iterator[tuple[int, int]]:
    """Each instruction of 16 and 32 bits of Thumb code; the second half is 0 for the former."""
    halves = [half for (half,) in struct.iter_unpack("<H", code[: len(code) // 2 * 2])]
    place = 0
    while place < len(halves):
        wide = halves[place] >> 11 in (0b11101, 0b11110, 0b11111) and place + 1 < len(halves)
        yield halves[place], halves[place + 1] if wide else 0
        place += 2 if wide else 1


def _thumb(code: bytes) -> int:
    total = 0
    for first, second in _halves(code):
        if first & 0xFE00 == 0xB400:  # push
            total += 4 * (first & 0x1FF).bit_count()
        elif first == 0xE92D:
            total += 4 * second.bit_count()
        elif first & 0xFFBF == 0xED2D and second & 0xF00 in (0xB00, 0xA00):  # vpush
            total += 4 * (second & 0xFF)
        elif first & 0xFF80 == 0xB080:  # sub sp, #
            total += 4 * (first & 0x7F)
        elif first & 0xFBEF == 0xF1AD and second & 0x8F00 == 0x0D00:  # sub.w sp, sp, #
            total += _thumb_constant((first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF)
        elif first & 0xFBFF == 0xF2AD and second & 0x8F00 == 0x0D00:  # subw sp, sp, #
            total += (first >> 10 & 1) << 11 | (second >> 12 & 7) << 8 | second & 0xFF
        elif first & 0xFF00 == 0xBD00 or first == 0x4770:  # pop with pc, bx lr
            break
    return total


def _thumb_constant(bits: int) -> int:
    """What a modified immediate constant of Thumb-2 means: 8 bits, repeated or turned."""
    value = bits & 0xFF
    if bits >> 10 == 0:
        return (value, value << 16 | value, value << 24 | value << 8, value * 0x01010101)[bits >> 8 & 3]
    value, turn = 0x80 | bits & 0x7F, bits >> 7
    return (value >> turn | value << (32 - turn)) & 0xFFFFFFFF


def _riscv(code: bytes) -> int:
    total, place, registers = 0, 0, [0] * 32
    while place + 2 <= len(code):
        half = int.from_bytes(code[place : place + 2], "little")
        if half & 3 == 3:
            word = int.from_bytes(code[place : place + 4], "little")
            value = _signed(word >> 20, 12)
            if word & 0xFFFFF == 0x10113:  # addi sp, sp, #
                total -= min(value, 0)
            elif word & 0x7F == 0x37:  # lui
                registers[word >> 7 & 31] = _signed(word >> 12, 20) << 12
            elif word & 0x7077 == 0x13 and word >> 15 & 31 == word >> 7 & 31:  # addi, addiw of the same register
                registers[word >> 7 & 31] += value
            elif word & 0xFE0FFFFF == 0x40010133:  # sub sp, sp, register
                total += registers[word >> 20 & 31]
            place += 4
            continue
        small = _signed((half >> 12 & 1) << 5 | half >> 2 & 31, 6)
        if half & 0xEF83 == 0x6101:  # c.addi16sp
            bits = (half >> 12 & 1) << 5 | (half >> 3 & 3) << 3 | (half >> 5 & 1) << 2 | (half >> 2 & 1) << 1
            total -= min(16 * _signed(bits | half >> 6 & 1, 6), 0)
        elif half & 0xEF83 == 0x0101:  # c.addi sp
            total -= min(small, 0)
        elif half & 0xE003 == 0x6001:  # c.lui
            registers[half >> 7 & 31] = small << 12
        elif half & 0xC003 == 0x0001:  # c.addi, c.addiw
            registers[half >> 7 & 31] += small
        elif half & 0xFF83 == 0x9102:  # c.add sp, register
            total -= min(registers[half >> 2 & 31], 0)
        elif half == 0x8082:  # ret
            break
        place += 2
    return total


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


_READERS: dict[int, Callable[[bytes], int]] = {X86_64: _x86, ARM: _arm, AARCH64: _aarch64, RISCV: _riscv}
