"""Inline PTX of CUDA sources as calls of the functions in ptx.h."""

from __future__ import annotations

import re
from collections.abc import Callable

_ASM = re.compile(r"\basm\s+volatile\s*\(|\b__asm__\s+__volatile__\s*\(|\basm\s*\(")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TYPES = {"s8": "signed char", "u8": "unsigned char"}


def translate(source: str) -> str:
    """`source` with every asm statement replaced. Raises NotImplementedError for instructions that ptx.h lacks."""
    parts, at = [], 0
    for match in _ASM.finditer(source):
        if match.start() < at:
            continue
        end = _closing(source, match.end())
        parts += [source[at : match.start()], _statement(source[match.end() : end])]
        at = end + 1
    return "".join([*parts, source[at:]])


def _closing(text: str, start: int) -> int:
    """Where the parenthesis opened before `start` closes."""
    depth, at = 1, start
    while True:
        if text[at] == '"':
            at = _STRING.match(text, at).end() - 1  # type: ignore[union-attr]
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += 1


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside parentheses, brackets and strings."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if text[at] == '"':
            at = _STRING.match(text, at).end() - 1  # type: ignore[union-attr]
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
        if text[at] == separator and depth == 0:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def _statement(text: str) -> str:
    """One asm statement: template, outputs and inputs as "constraint"(expression)."""
    text = re.sub(r"#if TVM_ENABLE_L2_PREFETCH\n.*?#else\n(.*?)#endif\n", r"\1", text, flags=re.DOTALL)
    template, *operands = _split(text, ":")
    expressions = []
    for operand in (piece for part in operands[:2] for piece in _split(part, ",") if piece.strip()):
        string = _STRING.search(operand)
        assert string, operand
        expressions.append(operand[string.end() :].strip())
    ptx = "".join(_STRING.findall(template)).replace("\\n", " ").replace("\\t", " ").strip()
    if ptx.startswith("{") and ptx.endswith("}") and ";" in ptx:  # a block with its own registers
        ptx = ptx[1:-1]
    calls = [_instruction(line.strip(), expressions) for line in ptx.split(";") if line.strip()]
    return "{ " + " ".join(calls) + " }"


def _instruction(line: str, expressions: list[str]) -> str:
    guard = ""
    if line.startswith("@"):
        predicate, line = line.split(None, 1)
        guard = f"if ({predicate[1:]}) "
    name, _, rest = line.partition(" ") if "{" not in line.split(" ")[0] else line.partition("{")
    if "{" in name:  # no space between the name and its first operand
        name, _, rest = line.partition("{")
        rest = "{" + rest
    elif line[len(name) :].startswith("{"):
        rest = "{" + rest
    operands = [_operand(piece, expressions) for piece in _split(rest, ",") if piece.strip()]
    for pattern, write in _INSTRUCTIONS:
        match = re.fullmatch(pattern, name)
        if match:
            return guard + write(match, operands) + ";"
    raise NotImplementedError(f"PTX instruction {name} is not emulated: add it to tests/cuda/ptx.h")


def _operand(text: str, expressions: list[str]) -> list[str]:
    """The C expressions of an operand: several for a {list} of registers, one for [an address] or a register."""
    text = text.strip()
    if text.startswith("{"):
        return [name for piece in text[1:-1].split(",") for name in _operand(piece, expressions)]
    text = text.strip("[] ")
    return [expressions[int(text[1:])] if re.fullmatch(r"%\d+", text) else text.lstrip("%")]


def _registers(kind: str, name: str, values: list[str]) -> str:
    return f"{kind} {name}[] = {{{', '.join(f'({kind})({value})' for value in values)}}};"


def _results(values: list[str]) -> str:
    return " ".join(f"{value} = d_[{i}];" for i, value in enumerate(values))


def _ldmatrix(match: re.Match[str], operands: list[list[str]]) -> str:
    registers, (address,) = operands
    number, transposed = match[1], "true" if match[2] else "false"
    call = f"ptx::ldmatrix<{number}, {transposed}>(d_, {address});"
    return f"{{ unsigned d_[{number}]; {call} {_results(registers)} }}"


def _mma(match: re.Match[str], operands: list[list[str]]) -> str:
    d, a, b, c = operands
    kinds = f"{match[1]}, {match[2]}, {_TYPES[match[3]]}, {_TYPES[match[4]]}"
    arrays = [_registers("unsigned", "a_", a), _registers("unsigned", "b_", b), _registers("int", "c_", c)]
    return f"{{ {' '.join(arrays)} int d_[{len(d)}]; ptx::mma<{kinds}>(d_, a_, b_, c_); {_results(d)} }}"


def _mma_floats(match: re.Match[str], operands: list[list[str]]) -> str:
    d, a, b, c = operands
    value = {"f16": "from_half", "bf16": "from_bfloat"}[match[1]]
    arrays = [_registers("unsigned", "a_", a), _registers("unsigned", "b_", b), _registers("float", "c_", c)]
    return f"{{ {' '.join(arrays)} float d_[{len(d)}]; ptx::mma_floats<ptx::{value}>(d_, a_, b_, c_); {_results(d)} }}"


def _fma_pair(match: re.Match[str], operands: list[list[str]]) -> str:
    (to,), (a,), (b,), (c,) = operands
    value, bits = {"f16": ("from_half", "exact_half"), "bf16": ("from_bfloat", "exact_bfloat")}[match[1]]
    return f"{to} = ptx::fma_pair<ptx::{value}, ptx::{bits}>({a}, {b}, {c})"


def _copy(match: re.Match[str], operands: list[list[str]]) -> str:
    (to,), (source,), (size,), *given = operands
    return f"ptx::cp_async({to}, (const void *)({source}), {size}, {given[0][0] if given else size})"


_INSTRUCTIONS: list[tuple[str, Callable[[re.Match[str], list[list[str]]], str]]] = [
    (r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", _ldmatrix),
    (r"mma\.sync\.aligned\.m(8|16)n8k(16|32)\.row\.col\.s32\.([su]8)\.([su]8)\.s32", _mma),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(b?f16)\.\1\.f32", _mma_floats),
    (r"fma\.rn\.(b?f16)x2", _fma_pair),
    (r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?:\.L2::\d+B)?", _copy),
    (r"cp\.async\.commit_group", lambda match, operands: "ptx::commit_group()"),
    (r"cp\.async\.wait_group", lambda match, operands: f"ptx::wait_group({operands[0][0]})"),
    (r"cp\.async\.wait_all", lambda match, operands: "ptx::wait_all()"),
    (r"st\.shared(?:\.v[24])?\.[ub]32", lambda match, operands: _store(operands)),
    (r"\.reg", lambda match, operands: ""),
    (r"setp\.ne\.b32", lambda match, operands: f"bool {operands[0][0]} = ({operands[1][0]}) != ({operands[2][0]})"),
]


def _store(operands: list[list[str]]) -> str:
    (to,), words = operands
    return f"ptx::store_shared({to}, {{{', '.join(f'(unsigned)({word})' for word in words)}}})"
