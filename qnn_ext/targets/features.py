"""What a TVM target offers, according to its backend and, for CPUs, LLVM, so that both `-mcpu` and `-mattr` count."""

from __future__ import annotations

from functools import cache, lru_cache

import tvm
from tvm.target import Target

from .backend import Backend, Caches, FeatureSets, Product, RegisterFile, Sharing
from .caches import CACHES
from .families import ANY_CPU, backend_for
from .host import host_caches


def backend_of(target: Target) -> Backend:
    """The backend of a target."""
    return backend_for(target.kind.name, target.attrs)


def current_backend() -> Backend:
    """The backend of the current target, for TE rules, which have access to no other."""
    target = Target.current(allow_none=True)
    return ANY_CPU if target is None else backend_of(target)


def sharing_of(target: Target) -> Sharing:
    """The amounts of work from which kernels for the target are parallelized."""
    return backend_of(target).sharing


@lru_cache(maxsize=4096)
def _has(feature: str, target_json: str) -> bool:
    return bool(tvm.target.codegen.llvm_cpu_has_features(feature, Target(target_json)))


def has_feature(target: Target, feature: str) -> bool:
    """Whether the target's CPU has an LLVM feature: "avx512vnni" or "avx2" on x86, "dotprod" or "i8mm" on ARM."""
    return target.kind.name == "llvm" and _has(feature, str(target))


def has_any(target: Target, sets: FeatureSets) -> bool:
    """Whether the target's CPU has all features of at least one of the sets."""
    return any(all(has_feature(target, feature) for feature in together) for together in sets)


def offers(target: Target, product: Product) -> bool:
    """Whether the target has this way to multiply."""
    return product in backend_of(target).every_product and has_any(target, product.features)


def multiplies_by(target: Target, name: str) -> bool:
    """Whether the target has the way to multiply of this name."""
    return any(one.name == name and offers(target, one) for one in backend_of(target).products)


def registers_of(target: Target) -> RegisterFile:
    """The widest vector registers that the target has."""
    return next(file for features, file in backend_of(target).registers if has_any(target, features))


def current_registers() -> RegisterFile:
    """Those of the current target, for TE rules."""
    target = Target.current(allow_none=True)
    return ANY_CPU.registers[0][1] if target is None else registers_of(target)


def caches_of(target: Target) -> Caches:
    """The caches of the target's CPU: from its data sheet; if that is not known but it is this machine's, those of this
    machine; otherwise its family's."""
    cpu = str(target.attrs.get("mcpu", "")) if target.kind.name == "llvm" else ""
    here = host_caches() if cpu == host_cpu() and cpu not in _OF_NO_MODEL else None
    return CACHES.get(cpu) or here or backend_of(target).caches


@cache
def host_cpu() -> str:
    """LLVM's name of this machine's CPU."""
    return str(tvm.target.codegen.llvm_get_system_cpu())


_OF_NO_MODEL = ("generic", "x86-64")  # LLVM's names of CPUs that it does not know


def current_caches() -> Caches:
    """The caches of the current target's CPU, for TE rules."""
    target = Target.current(allow_none=True)
    return ANY_CPU.caches if target is None else caches_of(target)


def contracts(target: Target) -> bool:
    """Whether LLVM contracts a float product and an addition into one operation that rounds once."""
    return has_any(target, backend_of(target).contracts)


def current_contracts() -> bool:
    """Whether it does so for the current target, for TE rules."""
    target = Target.current(allow_none=True)
    return target is not None and contracts(target)


def _fastest(target: Target) -> int:
    return next(rank for rank, product in enumerate(backend_of(target).products) if has_any(target, product.features))


def generating(target: Target) -> Target:
    """The target as code generation must know it: with what LLVM must be told besides the CPU's features."""
    attributes = dict(target.export())
    told = [(name, text) for sets, name, text in backend_of(target).generates if has_any(target, sets)]
    for name, text in told:
        attributes[name] = [*attributes.get(name, ()), text]
    return Target(attributes) if told else target


def operand_dtypes(target: Target) -> tuple[str, str] | None:
    """The dtypes of activations and weights that the target's products take; None if they widen any 8-bit ones.
    Legalization, quantization and the order of a file's variants all depend on this function."""
    return backend_of(target).products[_fastest(target)].operands


def speed_rank(target: Target) -> int:
    """The rank of the target's multiplication speed within its architecture, 0 for the fastest; GPUs come first."""
    return -1 if backend_of(target).grid else _fastest(target)
