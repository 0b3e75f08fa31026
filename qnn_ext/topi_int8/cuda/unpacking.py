"""Packed weights unpacked in registers: a word of 32 bits to the int8, float16, bfloat16 or float32 values that an
instruction multiplies, as TensorIntrins.

Fields of 2 or 4 bits are the bytes of a word that is shifted and masked, every fourth or second value; permutations of
bytes put them in order. Flipping a field's highest bit subtracts 2^(bits − 1) from an unsigned value, modulo 2^bits.

    int8                field · 2^(8 − bits), that is, at the top of its byte: sign extension takes no instruction
    float16, bfloat16   field | 0x6400 is 1024 + field, and field | 0x4300 is 128 + field for seven bits: one fused
                        multiply-add for two values subtracts that. Bytes as bfloat16 are sums of two such halves
    float32             field | 0x4B000000 is 2²³ + field

Instructions for a value, its load and its store included: 0.6 to 1.1 for int8, 2.2 to 4.2 for floats.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from ...numerics import bfloat16
from ...numerics.packed import WIDTHS, unpacked

WORD = 4
"""Bytes that are unpacked at a time."""


@dataclass(frozen=True)
class Form:
    """The values that an instruction multiplies, `unit` of k at a time, to sums of the dtype `sums`."""

    dtype: str
    unit: int
    sums: str

    def stored(self, value: Any, bits: int) -> Any:
        """An int32 of so many bits as it is multiplied: exact, and int8 times 2^(8 − bits)."""
        if self.dtype == "int8":
            return (tirx.shift_left(value, tirx.const(8 - bits, "int32")) if bits < 8 else value).astype("int8")
        if self.dtype == bfloat16.BITS:
            word = tirx.reinterpret("uint32", value.astype("float32"))
            return tirx.shift_right(word, tirx.const(16, "uint32")).astype(bfloat16.BITS)
        return value.astype(self.dtype)

    def instructions(self, bits: int) -> float:
        """How many unpack a value, those of its load and its store included: what `_function` writes."""
        fields, order = {2: (7, 8), 4: (3, 2), 8: (1, 0)}[bits]
        values = 8 * WORD // bits
        after = {"int8": 0.0, "float32": 2.0}.get(self.dtype, 3.5 if (self.dtype, bits) == (bfloat16.BITS, 8) else 1.5)
        stored = values * {"int8": 1, "float32": 4}.get(self.dtype, 2) / 8
        return (1 + fields + order + stored) / values + after

    def unscaled(self, total: Any, bits: int) -> Any:
        """A sum of products with stored values as one with the values: |Σ| ≤ 2¹⁶ · 2¹⁴ fits int32 before, too."""
        if self.dtype == "int8" and bits < 8:
            return tirx.shift_right(total, tirx.const(8 - bits, "int32"))
        return total

    def value(self, element: Any) -> Any:
        """An element in the dtype of sums."""
        if self.dtype == bfloat16.BITS:
            return bfloat16.from_bits_expression(element)
        return element.astype(self.sums)


def values_of_word(weight_dtype: str) -> int:
    """Weights in 32 bits."""
    return 8 * WORD // WIDTHS[weight_dtype]


@cache
def unpack(weight_dtype: str, form: Form, offset: int, source: str, destination: str) -> str:
    """The name of the intrinsic: values of a word, less the offset, from one memory scope to another.

    offset: 2^(bits − 1) for unsigned values, 0 for signed ones
    """
    count, bits, dtype = values_of_word(weight_dtype), WIDTHS[weight_dtype], form.dtype
    each = 8 // bits
    function = f"qnn_unpack_{weight_dtype}_{'bfloat16' if dtype == bfloat16.BITS else dtype}"
    code = _function(function, bits, weight_dtype.startswith("u"), dtype)

    @T.prim_func(s_tir=True)
    def description(word: T.handle, values: T.handle) -> None:
        W = T.match_buffer(word, (WORD,), "uint8", align=4, offset_factor=4, scope=source)
        V = T.match_buffer(values, (count,), dtype, align=4, offset_factor=4, scope=destination)
        with T.sblock("root"):
            T.reads(W[0:WORD])
            T.writes(V[0:count])
            for k in range(0, count):
                with T.sblock("unpack"):
                    vk = T.axis.spatial(count, k)
                    V[vk] = form.stored(unpacked(W[vk // each], vk % each, weight_dtype) - T.int32(offset), bits)

    @T.prim_func(s_tir=True)
    def implementation(word: T.handle, values: T.handle) -> None:
        W = T.match_buffer(word, (WORD,), "uint8", align=4, offset_factor=4, scope=source)
        V = T.match_buffer(values, (count,), dtype, align=4, offset_factor=4, scope=destination)
        with T.sblock("root"):
            T.reads(W[0:WORD])
            T.writes(V[0:count])
            T.evaluate(cuda_func_call(function, V.access_ptr("w"), W.access_ptr("r"), source_code=code))

    name = f"qnn.{function}_{source}_{destination}"
    TensorIntrin.register(name, description, implementation, override=True)
    return name


def _function(name: str, bits: int, unsigned: bool, dtype: str) -> str:
    """A CUDA function that unpacks a word, (void* to, const void* from)."""
    if dtype == "int8":
        lines = _bytes(bits, unsigned)
    elif dtype == "float32":
        lines = _floats(bits, unsigned)
    else:
        lines = _halves(bits, unsigned, dtype == bfloat16.BITS)
    body = "\n".join(f"  {line}" for line in ["const unsigned int w = *(const unsigned int*)from;", *lines])
    return f"\n__forceinline__ __device__ void {name}(void* to, const void* from) {{\n{body}\n}}\n"


def _every(byte: int) -> str:
    return f"0x{byte * 0x01010101:08X}u"


def _in_order(bits: int) -> list[str]:
    """Statements that put the bytes of b0, b1, … in turns: four neighbours to a word v0, v1, …"""
    if bits == 8:
        return ["const unsigned int v0 = b0;"]
    pairs = [f"__byte_perm(b{2 * i}, b{2 * i + 1}, 0x{half})" for i in range(4 // bits) for half in ("5140", "7362")]
    if bits == 4:
        return [f"const unsigned int v{i} = {pair};" for i, pair in enumerate(pairs)]
    lines = [f"const unsigned int p{i} = {pair};" for i, pair in enumerate(pairs)]
    for half in range(2):
        for i, select in enumerate(("5410", "7632")):
            lines.append(f"const unsigned int v{2 * half + i} = __byte_perm(p{half}, p{half + 2}, 0x{select});")
    return lines


def _store(count: int) -> list[str]:
    """Statements that store words v0, v1, …, four bytes to eight at a time."""
    if count == 1:
        return ["*(unsigned int*)to = v0;"]
    return [f"((uint2*)to)[{i}] = make_uint2(v{2 * i}, v{2 * i + 1});" for i in range(count // 2)]


def _bytes(bits: int, unsigned: bool) -> list[str]:
    mask, flip = _every(0x100 - (1 << (8 - bits))), f" ^ {_every(0x80)}" if unsigned else ""

    def fields(position: int) -> str:
        shift = 8 - bits - position * bits
        shifted = f"(w << {shift})" if shift else "w"
        return f"({shifted} & {mask})" if bits < 8 else shifted

    lines = [f"const unsigned int b{i} = {fields(i)}{flip};" for i in range(8 // bits)]
    return [*lines, *_in_order(bits), *_store(8 // bits)]


def _fields(bits: int, unsigned: bool) -> list[str]:
    """Statements for the fields as bytes, with 2^(bits − 1) added to signed values: what is subtracted afterwards."""
    flip = "" if unsigned else f" ^ {_every(1 << (bits - 1))}"

    def fields(position: int) -> str:
        shifted = f"(w >> {position * bits})" if position else "w"
        return f"({shifted} & {_every((1 << bits) - 1)})" if bits < 8 else shifted

    return [f"const unsigned int b{i} = {fields(i)}{flip};" for i in range(8 // bits)]


def _floats(bits: int, unsigned: bool) -> list[str]:
    middle = float((1 << 23) + (1 << (bits - 1)))
    values = [
        f"__int_as_float((int)(__byte_perm(v{i // 4}, 0x4B000000u, 0x7{'44'}{i % 4}))) - {middle}f"
        for i in range(32 // bits)
    ]
    stores = [
        f"((float2*)to)[{i}] = make_float2({values[2 * i]}, {values[2 * i + 1]});" for i in range(len(values) // 2)
    ]
    return [*_fields(bits, unsigned), *_in_order(bits), *stores]


def _twice(value: float, of_bfloat16: bool) -> str:
    """Two equal numbers of 16 bits as a word."""
    number = np.array([value], np.float32)
    bits = bfloat16.bits_of(number) if of_bfloat16 else number.astype(np.float16).view(np.uint16)
    return f"0x{int(bits.item()) * 0x00010001:08X}u"


def _halves(bits: int, unsigned: bool, of_bfloat16: bool) -> list[str]:
    kind, above, base = ("bf16", "0x43004300u", 128) if of_bfloat16 else ("f16", "0x64006400u", 1024)
    middle, count = 1 << (bits - 1), 16 // bits

    def multiply_add(to: str, factor: float, other: str) -> str:
        """Two of them: to = to · factor + other."""
        return (
            f'asm("fma.rn.{kind}x2 %0, %1, %2, %3;" : "=r"({to}) : "r"({to}), "r"({_twice(factor, of_bfloat16)}), '
            f'"r"({other}));'
        )

    lines = [*_fields(bits, unsigned), *_in_order(bits)]
    for i in range(count):
        h, pair = f"h{i}", f"__byte_perm(v{i // 2}, 0u, 0x4{2 * (i % 2) + 1}4{2 * (i % 2)})"
        if of_bfloat16 and bits == 8:
            lines += [
                f"const unsigned int w{i} = {pair};",
                f"unsigned int t{i} = ((w{i} >> 4) & 0x000F000Fu) | {above}, {h} = (w{i} & 0x000F000Fu) | {above};",
                multiply_add(f"t{i}", 16.0, _twice(-16.0 * base - base - middle, True)),
                multiply_add(h, 1.0, f"t{i}"),
            ]
        else:
            less = _twice(-float(base + middle), of_bfloat16)
            lines += [f"unsigned int {h} = {pair} | {above};", multiply_add(h, 1.0, less)]
    return [*lines, *(f"((uint2*)to)[{i}] = make_uint2(h{2 * i}, h{2 * i + 1});" for i in range(count // 2))]
