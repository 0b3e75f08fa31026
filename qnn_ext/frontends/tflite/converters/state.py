"""VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE, CALL_ONCE: streaming models, whose state goes into and out of `main`."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....limits import charge
from ..node import Node, shape_of
from ..registry import converter


def _variable(node: Node) -> str:
    """The name of the variable whose handle is the node's first input: handles must come straight from a VAR_HANDLE."""
    handle = node.operator.inputs[0] if node.operator.inputs else -1
    for operator in node.assembly.graph.operators:
        if operator.name == "VAR_HANDLE" and handle in operator.outputs:
            return _name(operator.options)
    raise node.unsupported("a handle that does not come from a VAR_HANDLE of the same subgraph")


def _name(options: dict) -> str:
    return "/".join(part for part in (options["container"], options["shared_name"]) if part) or "variable"


@converter("VAR_HANDLE", max_version=1)
def convert_var_handle(node: Node) -> list[relax.Expr]:
    """A handle has no value; the other operators look its name up."""
    if node.output_tensor().dtype != "resource":
        raise node.malformed(f"returns a {node.output_tensor().dtype}, not a resource")
    return []


@converter("READ_VARIABLE", max_version=1)
def convert_read_variable(node: Node) -> relax.Expr:
    """The variable's value at this point of the graph."""
    name, output = _variable(node), node.output_tensor()
    if name in node.assembly.state_values:
        return node.assembly.state_values[name]
    if name not in node.assembly.initial_states:
        raise node.unsupported(f"reading variable '{name}' before it is assigned, without an initial value")
    initial = node.assembly.initial_states[name]
    if str(initial.dtype) != output.dtype:
        raise node.malformed(f"variable '{name}' holds {initial.dtype}, but is read as {output.dtype}")
    return node.assembly.read_state(name, initial)


@converter("ASSIGN_VARIABLE", max_version=1)
def convert_assign_variable(node: Node) -> list[relax.Expr]:
    """Sets the value that later reads see, including those of the next call."""
    name, value = _variable(node), node.input(1)
    assembly = node.assembly
    if name not in assembly.state_values:
        charge(shape_of(value))
        blank = np.zeros(shape_of(value), node.dtype(1))
        assembly.read_state(name, assembly.initial_states.get(name, blank))
    before = assembly.state_values[name]
    if shape_of(before) != shape_of(value) or str(before.ty.dtype) != node.dtype(1):
        raise node.unsupported(
            f"changing variable '{name}' from {before.ty.dtype} {shape_of(before)} to {node.dtype(1)} {shape_of(value)}"
        )
    assembly.write_state(name, value)
    return []


@converter("CALL_ONCE", max_version=1)
def convert_call_once(node: Node) -> list[relax.Expr]:
    """The initialization subgraph runs at import; the values it assigns become the initial states."""
    index = int(node.options["init_subgraph_index"])
    if not 0 < index < len(node.assembly.model.subgraphs):
        raise node.malformed(f"there is no subgraph {index} to call")
    if node.assembly.graph.index != 0:
        raise node.unsupported("an initialization subgraph called within another")
    node.assembly.run_once(index)
    return []
