"""Numbers and strings likely to matter to a reader: limits, near misses, empty values, excessive ones."""

from __future__ import annotations

import random
import struct

INTEGERS = (
    0, 1, -1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 63, 64, 127, 128, 129, 255, 256, 1000, 1 << 15, (1 << 16) - 1, 1 << 16,
    1 << 20, 1 << 24, 1 << 27, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 63) - 1,
    -2, -3, -4, -127, -128, -129, -(1 << 15), -(1 << 31), -(1 << 63),
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-45, 1e-38, 1e-30, 1e-7, 255.0, 65504.0, 2147483648.0, 1e19, 1e30, 3.4e38,
    -3.4e38, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", "0", "1", "-1", "2", "7", "255", "1000000", "99999999999999999999", "1e30", "1e-40", "nan", "-inf", "None",
    "True", "(0,)", "(1, 1)", "(-1, 0)", "(3, 3, 3)", "(None, 1)", "(9999999, 9999999)", "(" * 500, "abc", "x", "data",
    "NHWC", "avg", "uint8", "float16", "a" * 5000, "\x00", "../../etc/passwd", "é\u0301\U0001f600", "\ud800", "%s%n{}",
    "\n",
)  # fmt: skip


def integer(chance: random.Random, old: int) -> int:
    """Another integer: a notable one, or one derived from the old one."""
    near = (old + 1, old - 1, 2 * old, old // 2, -old, old ^ (1 << chance.randrange(8)))
    return chance.choice(INTEGERS) if chance.random() < 0.6 else chance.choice(near)


def real(chance: random.Random, old: float) -> float:
    """Another number, notable or of another magnitude."""
    return chance.choice(FLOATS) if chance.random() < 0.7 else old * chance.choice((-1.0, 1e-3, 1e3, 1e10, 1e-10))


def text(chance: random.Random, others: list[str]) -> str:
    """One of `others` (strings from the same file), or a notable one."""
    return chance.choice(others) if others and chance.random() < 0.7 else chance.choice(TEXTS)


def word(chance: random.Random, old: bytes) -> bytes:
    """As many bytes as `old` has (1, 2, 4 or 8), holding another integer or float."""
    if len(old) in (2, 4, 8) and chance.random() < 0.3:
        code = {2: "<e", 4: "<f", 8: "<d"}[len(old)]
        value = chance.choice(FLOATS)
        return struct.pack(code, value if abs(value) < 65520 or value != value else float("inf"))
    return (integer(chance, int.from_bytes(old, "little")) % (1 << 8 * len(old))).to_bytes(len(old), "little")
