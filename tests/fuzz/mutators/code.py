"""Damage to source code such as TorchScript's: mostly the result is again code, with other operators and operands."""

from __future__ import annotations

import random
import re
from functools import cache

from . import raw, values

_TOKEN = re.compile(rb"[A-Za-z_][A-Za-z_0-9.]*|-?\d+\.\d*(?:e-?\d+)?|-?\d+|\S")
_NUMBER = re.compile(rb"-?\d+(?:\.\d*)?(?:e-?\d+)?(?![\w.])")
_FUNCTION = re.compile(rb"\b(?:torch|ops)\.[a-z_0-9.]+(?=\()")
_OPERAND = re.compile(rb"(?<=[(, \[])(?:_\d+|[a-z]\w*)(?=[,)\]])")
_METHOD = re.compile(rb"^  def ", re.MULTILINE)


@cache
def _functions() -> list[bytes]:
    """Operators of PyTorch that qnn_ext converts, by their TorchScript names."""
    from qnn_ext.frontends.pytorch.torchscript.registry import CONVERTERS

    kinds = sorted(kind for kind in CONVERTERS if not kind.startswith("prim::"))
    return [kind.replace("aten::", "torch.").replace("::", ".").encode() for kind in kinds] or [b"torch.add"]


def change_code(data: bytes, chance: random.Random) -> bytes:
    """Another number, operand, operator or line; rarely anything anywhere."""
    action = chance.choice((_number, _number, _number, _operand, _operand, _function, _function, _line, _token))
    return action(data, chance)


def _replaced(pattern: re.Pattern[bytes], data: bytes, chance: random.Random) -> tuple[bytes, bytes, bytes]:
    """The text before, at and after a matching place in a method; a text without methods counts as one method."""
    start = next((match.start() for match in _METHOD.finditer(data)), 0)
    places = [match.span() for match in pattern.finditer(data, start)]
    begin, end = chance.choice(places) if places else (len(data), len(data))
    return data[:begin], data[begin:end], data[end:]


def _number(data: bytes, chance: random.Random) -> bytes:
    before, old, after = _replaced(_NUMBER, data, chance)
    if not old:
        return data
    if b"." in old or b"e" in old:
        return before + repr(values.real(chance, float(old))).encode() + after
    return before + str(values.integer(chance, int(old))).encode() + after


def _operand(data: bytes, chance: random.Random) -> bytes:
    before, _, after = _replaced(_OPERAND, data, chance)
    names = _OPERAND.findall(data) or [b"x"]
    return before + chance.choice((*names, *names, b"None", b"[]", b"[0]", b"True")) + after


def _function(data: bytes, chance: random.Random) -> bytes:
    before, _, after = _replaced(_FUNCTION, data, chance)
    return before + chance.choice(_FUNCTION.findall(data) + [chance.choice(_functions())] * 3) + after


def _line(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True) or [b""]
    place = chance.randrange(len(lines))
    lines[place : place + 1] = [lines[chance.randrange(len(lines))]] * chance.randrange(3)
    return b"".join(lines)


def _token(data: bytes, chance: random.Random) -> bytes:
    tokens = [match.span() for match in _TOKEN.finditer(data)]
    if not tokens or chance.random() < 0.3:
        return raw.anything(data, chance)
    (start, end), other = chance.choice(tokens), chance.choice(tokens)
    return data[:start] + data[slice(*other)] + data[end:]
