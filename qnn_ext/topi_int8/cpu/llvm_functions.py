"""Functions in LLVM's IR around what TVM cannot call: intrinsics of types that it has not, such as vectors of bfloat,
and instructions that LLVM does not find.

A kernel calls them as external functions of other types of the same size; `importing` adds their definitions, which
LLVM inlines.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, tirx

_PREFIX = "qnn_ext_"
_defined: dict[str, str] = {}


def define(name: str, result: str, operands: Sequence[str], intrinsic: str, types: Sequence[str]) -> str:
    """Define result f(types…) = intrinsic(operands…), which reinterprets its arguments; returns the function's name."""
    symbol = _PREFIX + name
    parameters = ", ".join(f"{given} %a{index}" for index, given in enumerate(types))
    casts = "\n".join(
        f"  %b{index} = bitcast {given} %a{index} to {taken}"
        for index, (given, taken) in enumerate(zip(types, operands, strict=True))
    )
    passed = ", ".join(f"{taken} %b{index}" for index, taken in enumerate(operands))
    _defined[symbol] = f"""define linkonce_odr hidden {result} @{symbol}({parameters}) alwaysinline nounwind {{
{casts}
  %result = call {result} @{intrinsic}({passed})
  ret {result} %result
}}
declare {result} @{intrinsic}({", ".join(operands)})
"""
    return symbol


def define_instruction(name: str, result: str, assembly: str, constraints: str, types: Sequence[str]) -> str:
    """Define result f(types…) as an instruction with its constraints, as LLVM writes them; returns the function's
    name. It must do nothing but compute its result."""
    symbol = _PREFIX + name
    parameters = ", ".join(f"{given} %a{index}" for index, given in enumerate(types))
    _defined[symbol] = f"""define linkonce_odr hidden {result} @{symbol}({parameters}) alwaysinline nounwind {{
  %result = call {result} asm "{assembly}", "{constraints}"({parameters})
  ret {result} %result
}}
"""
    return symbol


def define_routine(name: str, lines: Sequence[str], constraints: str, types: Sequence[str]) -> str:
    """Define f(types…) as instructions with their constraints, which read and write memory at their operands; returns
    its name. Each operand is tied to an output, so that its register may change."""
    symbol = _PREFIX + name
    parameters = ", ".join(f"{given} %a{index}" for index, given in enumerate(types))
    code, results = "\\0A".join(lines), ", ".join(types)
    _defined[symbol] = f"""define linkonce_odr hidden void @{symbol}({parameters}) alwaysinline nounwind {{
  %changed = call {{ {results} }} asm sideeffect "{code}", "{constraints}"({parameters})
  ret void
}}
"""
    return symbol


def importing(body: tirx.Stmt) -> tirx.Stmt:
    """The body of a kernel with the definitions of those functions that it calls."""
    called: set[str] = set()

    def note(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op) and call.op.name in ("tirx.call_pure_extern", "tirx.call_extern"):
            called.add(str(call.args[0].value))

    tvm_ffi.structural_walk(body, (ir.Call, note))
    for symbol in sorted(called & _defined.keys()):
        body = tirx.AttrStmt(0, "pragma_import_llvm", _defined[symbol], body)
    return body
