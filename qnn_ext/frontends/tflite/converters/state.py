"""VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE, CALL_ONCE: streaming models, whose state goes into and out of `main`."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....limits import charge
from ....op.base import constant
from ..node import Node, shape_of
from ..registry import converter
from ..signatures import variable_name


def _variable(node: Node) -> str:
    """The name of the variable whose handle is the node's first input."""
    if node.tensor(0).dtype != "resource":
        raise node.malformed(f"the first input is a {node.tensor(0).dtype}, not the handle of a variable")
    return node.assembly.variables.named(node.constant(0))


@converter("VAR_HANDLE", max_version=1)
def convert_var_handle(node: Node) -> relax.Expr:
    """A constant by which the other operators find the variable; subgraphs may take it as an input."""
    if node.output_tensor().dtype != "resource":
        raise node.malformed(f"returns a {node.output_tensor().dtype}, not a resource")
    return constant(node.assembly.variables.handle(variable_name(node.options)))


@converter("READ_VARIABLE", max_version=1)
def convert_read_variable(node: Node) -> relax.Expr:
    """The variable's value at this point of the graph."""
    name, output, variables = _variable(node), node.output_tensor(), node.assembly.variables
    if name in variables.values:
        return variables.values[name]
    if name not in variables.initial:
        raise node.unsupported(f"reading variable '{name}' before it is assigned, without an initial value")
    initial = variables.initial[name]
    if str(initial.dtype) != output.dtype:
        raise node.malformed(f"variable '{name}' holds {initial.dtype}, but is read as {output.dtype}")
    return variables.read(name, initial)


@converter("ASSIGN_VARIABLE", max_version=1)
def convert_assign_variable(node: Node) -> list[relax.Expr]:
    """Sets the value that later reads see, including those of the next call."""
    name, value, variables = _variable(node), node.input(1), node.assembly.variables
    if name not in variables.values:
        charge(shape_of(value))
        blank = np.zeros(shape_of(value), node.dtype(1))
        variables.read(name, variables.initial.get(name, blank))
    before = variables.values[name]
    if shape_of(before) != shape_of(value) or str(before.ty.dtype) != node.dtype(1):
        raise node.unsupported(
            f"changing variable '{name}' from {before.ty.dtype} {shape_of(before)} to {node.dtype(1)} {shape_of(value)}"
        )
    variables.values[name] = value
    return []


@converter("CALL_ONCE", max_version=1)
def convert_call_once(node: Node) -> list[relax.Expr]:
    """The initialization subgraph runs at import; the values it assigns become the initial states."""
    index = int(node.options["init_subgraph_index"])
    if not 0 < index < len(node.assembly.model.subgraphs):
        raise node.malformed(f"there is no subgraph {index} to call")
    if node.assembly.graph.index != node.assembly.model.main:
        raise node.unsupported("an initialization subgraph called within another")
    node.assembly.run_once(index)
    return []
