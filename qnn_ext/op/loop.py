"""qnn.loop: a computation that is repeated, with states that go from round to round.

The body is a function of its own. It belongs to the call as an attribute, so that passes over `main` carry it along
like any other attribute, and it uses nothing but its parameters and constants: a module with the body as `main` goes
through the same passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm_ffi
from tvm import IRModule, ir, relax
from tvm_ffi.dataclasses import py_class

from ..errors import ShapeError
from .base import TensorInfo, call_attributes, define, definition_of, export_to_script, tensor_info
from .evaluate import interpret
from .traits import Kind, Traits

MOST_TRIPS = 2**63 - 1
"""A round's number is an int64."""


@py_class("qnn_ext.Body", structural_eq="tree")  # TVM's printer cannot show a function as an attribute, but this
class Body(tvm_ffi.Object):
    """The body of a loop, as an attribute of the call."""

    function: ir.BaseFunc


@dataclass(frozen=True)
class Loop:
    """A call of qnn.loop, taken apart; the arguments are as in `loop`."""

    body: relax.Function
    captured: tuple[relax.Expr, ...]
    states: tuple[relax.Expr, ...]
    sequences: tuple[relax.Expr, ...]
    trips: int
    backwards_in: tuple[bool, ...]
    backwards_out: tuple[bool, ...]
    condition: relax.Expr | None = None

    @classmethod
    def of(cls, expr: Any) -> Loop | None:
        """The loop that an expression calls; None for any other expression."""
        if definition_of(expr) is not LOOP:
            return None
        attributes, args = call_attributes(expr), list(expr.args)
        condition = args.pop(0) if attributes["conditional"] else None
        states, sequences = attributes["states"], len(attributes["backwards_in"])
        captured = len(args) - states - sequences
        return cls(
            attributes["body"].function,
            tuple(args[:captured]),
            tuple(args[captured : captured + states]),
            tuple(args[captured + states :]),
            attributes["trips"],
            tuple(map(bool, attributes["backwards_in"])),
            tuple(map(bool, attributes["backwards_out"])),
            condition,
        )

    def call(self) -> relax.Call:
        """The call again. Raises ShapeError."""
        return loop(
            self.body,
            self.captured,
            self.states,
            self.sequences,
            self.trips,
            self.backwards_in,
            self.backwards_out,
            self.condition,
        )

    def with_body(self, body: relax.Function) -> Loop:
        """The loop with another body."""
        return replace(self, body=body)

    @property
    def parameters(self) -> tuple[list[relax.Var], list[relax.Var], list[relax.Var]]:
        """The body's parameters: what it captures, its states, and its slices of the sequences."""
        params, first = list(self.body.params), len(self.captured)
        return params[:first], params[first : first + len(self.states)], params[first + len(self.states) :]

    @property
    def results(self) -> tuple[relax.Expr | None, list[relax.Expr], list[relax.Expr]]:
        """What the body returns: the condition, if there is one, its new states, and its outputs."""
        fields = results_of(self.body)
        condition = fields.pop(0) if self.condition is not None else None
        return condition, fields[: len(self.states)], fields[len(self.states) :]


def results_of(function: relax.Function) -> list[relax.Expr]:
    """The results of a function that returns a tuple."""
    values = {binding.var: binding.value for block in function.body.blocks for binding in block.bindings}
    result = function.body.body
    while isinstance(result, relax.Var):
        result = values[result]
    return list(result.fields)


def _infer(
    *arguments: TensorInfo,
    body: Body,
    trips: int,
    states: int,
    backwards_in: Sequence[int],
    backwards_out: Sequence[int],
    conditional: bool,
) -> list[tuple[tuple[Any, ...], str]]:
    params = [tensor_info(param, param.name, "loop") for param in body.function.params]
    results = [tensor_info(result, f"result {index}", "loop") for index, result in enumerate(_types(body.function))]
    if not 0 <= trips <= MOST_TRIPS:
        raise ShapeError(f"trips must be from 0 to {MOST_TRIPS}, found {trips}")
    if len(arguments) != len(params) + conditional or len(results) != conditional + states + len(backwards_out):
        raise ShapeError(
            f"the body takes {len(params)} arguments and returns {len(results)} results; the loop has "
            f"{len(arguments) - conditional} arguments for it, and expects {conditional + states + len(backwards_out)}"
        )
    if conditional:
        for info in (arguments[0], results.pop(0)):
            if info.shape != () or info.dtype != "bool":
                raise ShapeError(f"the condition must be a bool scalar, found {info.dtype} of shape {info.shape}")
        arguments = arguments[1:]
    whole = len(arguments) - len(backwards_in)
    for index, (argument, param) in enumerate(zip(arguments, params, strict=True)):
        expected = param.shape if index < whole else (trips, *param.shape)
        if argument.shape != expected or argument.dtype != param.dtype:
            raise ShapeError(f"{param.name} of the body takes {_text(expected, param.dtype)}, found {_of(argument)}")
    for argument, result in zip(arguments[whole - states : whole], results, strict=False):
        if argument.shape != result.shape or argument.dtype != result.dtype:
            raise ShapeError(f"a state changes its type from {_of(argument)} to {_of(result)}")
    stacked = [((trips, *result.shape), result.dtype) for result in results[states:]]
    return [(result.shape, result.dtype) for result in results[:states]] + stacked


def _types(function: relax.Function) -> list[relax.Var]:
    """A variable for each result of the body."""
    return [relax.Var("result", ty) for ty in function.ret_ty.fields]


def _of(info: TensorInfo) -> str:
    return _text(info.shape, info.dtype)


def _text(shape: tuple[Any, ...], dtype: str) -> str:
    return f"{dtype} of shape {shape}"


def _reference(
    *arguments: np.ndarray,
    body: Body,
    trips: int,
    states: int,
    backwards_in: Sequence[int],
    backwards_out: Sequence[int],
    conditional: bool,
) -> tuple[np.ndarray, ...]:
    going, inputs = (bool(arguments[0]), arguments[1:]) if conditional else (True, arguments)
    whole = len(inputs) - len(backwards_in)
    captured, carried, sequences = inputs[: whole - states], list(inputs[whole - states : whole]), inputs[whole:]
    types = list(body.function.ret_ty.fields)[conditional + states :]
    stacked = [np.zeros((trips, *map(int, ty.shape)), str(ty.dtype)) for ty in types]
    mod, number = IRModule({"main": body.function}), 0
    while going and number < trips:
        last = trips - 1 - number
        slices = [whole[last if back else number] for whole, back in zip(sequences, backwards_in, strict=True)]
        results = interpret(mod, [*captured, *carried, *slices])
        if conditional:
            going = bool(results.pop(0))
        carried = results[:states]
        for whole_output, result, back in zip(stacked, results[states:], backwards_out, strict=True):
            whole_output[last if back else number] = result
        number += 1
    return (*carried, *stacked)


LOOP = define("loop", "*arguments", _infer, _reference, Traits(Kind.LOOP), "a body that is run again and again")


def loop(
    body: relax.Function | Body,
    captured: Sequence[relax.Expr],
    states: Sequence[relax.Expr],
    sequences: Sequence[relax.Expr],
    trips: int,
    backwards_in: Sequence[bool] = (),
    backwards_out: Sequence[bool] = (),
    condition: relax.Expr | None = None,
) -> relax.Call:
    """The results of

        for t in range(trips):
            states, outputs = body(captured, states, slices of the sequences at t)

    as a tuple: the final states, then each output stacked along a new axis 0 of length `trips`.

    body: a function that returns a tuple; it uses only its parameters, and gives each state the type that it had
    sequences: tensors whose axis 0 has the length `trips`
    backwards_in, backwards_out: for each sequence and each output, whether its first slice is the last along axis 0
    condition: a bool scalar. The body then returns a bool scalar before its states, and the loop ends when it is false:
        before the first round if `condition` is. Of the outputs, the slices of rounds that did not run are 0.

    Raises ShapeError.
    """
    function = body.function if isinstance(body, Body) else body
    outputs = len(function.ret_ty.fields) - len(states) - (condition is not None)
    return LOOP.call(
        *([] if condition is None else [condition]),
        *captured,
        *states,
        *sequences,
        body=Body(function),
        trips=int(trips),
        states=len(states),
        backwards_in=[int(bool(back)) for back in backwards_in or [False] * len(sequences)],
        backwards_out=[int(bool(back)) for back in backwards_out or [False] * outputs],
        conditional=condition is not None,
    )


def _from_script(*arguments: relax.Expr, **attributes: Any) -> relax.Call:
    """The call as it is printed."""
    return LOOP.call(*arguments, **attributes)


export_to_script(loop=_from_script)
