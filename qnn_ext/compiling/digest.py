"""What a module is, in 32 bytes: the digest of its structure, in which each constant is named by its own digest.

TVM writes a module down as JSON, weights too, which takes several times their memory. Here only one constant at a time
is copied.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from tvm import IRModule, ir, relax
from tvm.ir.attrs import make_node
from tvm.ir.expr import GenericConst
from tvm_ffi import structural_mutate

from ..op.base import array_of
from ..op.loop import Body


def digest_of(module: IRModule) -> bytes:
    """SHA-256 of a module: equal modules have equal digests, whoever made them.

    What is no constant of a Relax function (a tensor in an attribute, a constant of TIR) is part of the structure, by
    its value. Which operands are one and the same constant counts too. Raises what TVM raises for an object that it
    cannot write down.
    """
    return hashlib.sha256(ir.save_json(_structure(module, {})).encode()).digest()


def _structure(root: Any, named: dict[Any, relax.Var]) -> Any:
    """`root`, a module or a function, with a free variable for each constant, in the bodies of loops too. The types of
    loops are left out: they follow from the bodies.

    named: constant → its variable
    """

    def of_constant(constant: GenericConst, _mutator: Any) -> relax.Var:
        if constant not in named:
            named[constant] = relax.Var(_name(constant), constant.ty)
        return named[constant]

    def of_call(call: relax.Call, mutator: Any) -> relax.Call:
        new = mutator.default_mutate(call)  # which leaves attributes alone
        if not isinstance(call.attrs, ir.DictAttrs):
            return new
        attributes = {str(key): call.attrs[key] for key in call.attrs.keys()}  # noqa: SIM118 (an FFI object, no dict)
        bodies = {key: value for key, value in attributes.items() if isinstance(value, Body)}
        if not bodies:
            return new
        changed = {key: Body(_structure(body.function, named)) for key, body in bodies.items()}
        return relax.Call(new.op, new.args, make_node("ir.DictAttrs", **{**attributes, **changed}), new.ty_args)

    return structural_mutate(root, [(GenericConst, of_constant), (ir.Call, of_call)])


def _name(constant: GenericConst) -> str:
    """The digest of a constant's dtype, shape and values."""
    values = array_of(constant.value)
    digest = hashlib.sha256(f"{constant.value.dtype} {values.shape} ".encode())
    digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
