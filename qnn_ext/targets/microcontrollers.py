"""Cortex-M cores by LLVM's names, and what code for each of them is: which version of Thumb, and whether floats are
passed in registers.

Parts of a core that chips may lack are left out as GCC's `-mcpu` leaves them out: "cortex-m4+nofp".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import TargetError
from .backend import THREADS

_SOFT, _HARD = "eabi", "eabihf"

CORES: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("cortex-m0", "cortex-m0plus", "cortex-m1", "sc000"), ("thumbv6m", _SOFT)),
    **dict.fromkeys(("cortex-m3", "sc300"), ("thumbv7m", _SOFT)),
    **dict.fromkeys(("cortex-m4", "cortex-m7"), ("thumbv7em", _HARD)),
    "cortex-m23": ("thumbv8m.base", _SOFT),
    **dict.fromkeys(("cortex-m33", "cortex-m35p", "star-mc1", "star-mc3"), ("thumbv8m.main", _HARD)),
    **dict.fromkeys(("cortex-m52", "cortex-m55", "cortex-m85"), ("thumbv8.1m.main", _HARD)),
}
"""Core -> the architecture in LLVM's triple, and how floats are passed."""

_GNU = {
    **{f"thumbv{name}": f"armv{name[0]}-m" for name in ("6m", "7m")},
    "thumbv7em": "armv7e-m",
    **{f"thumbv{name}": f"armv{name.replace('m', '-m', 1)}" for name in ("8m.base", "8m.main", "8.1m.main")},
}
"""The architecture in LLVM's triple -> in the options of GCC and Clang."""

_WITHOUT: dict[str, tuple[str, ...]] = {"nofp": ("-vfp2sp",), "nodsp": ("-dsp",), "nomve": ("-mve",)}
"""What a chip may lack -> LLVM's features that go with it, and with these all that need them."""


def is_core(name: str) -> bool:
    """Whether a target's name is one of CORES, perhaps without some of its parts."""
    return name.split("+")[0] in CORES


def attributes_of_core(name: str) -> dict[str, Any]:
    """The TVM target attributes for a core's name. Raises TargetError."""
    core, *lacking = name.split("+")
    unknown = [part for part in lacking if part not in _WITHOUT]
    if unknown:
        raise TargetError(f"target {name!r}: {core} can be built for without {', '.join(_WITHOUT)}, not {unknown[0]!r}")
    architecture, abi = CORES[core]
    features = [feature for part in lacking for feature in _WITHOUT[part]]
    triple = f"{architecture}-unknown-none-{_SOFT if 'nofp' in lacking else abi}"
    attributes = {"kind": "llvm", "mtriple": triple, "mcpu": core, THREADS: 1}
    return {**attributes, "mattr": features} if features else attributes


def compiler_options(attributes: Mapping[str, Any]) -> list[str]:
    """What C compilers must be told for a core's TVM target attributes; nothing for other targets."""
    triple = str(attributes.get("mtriple", "")).split("-")
    architecture, abi = triple[0], triple[-1]
    if architecture not in _GNU:
        return []
    hard = abi == _HARD
    return ["-mthumb", f"-march={_GNU[architecture]}{'+fp' * hard}", f"-mfloat-abi={'hard' if hard else 'soft'}"]
