"""An imported model inside a function of expressions: its bindings, emitted again with other inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedOperatorError
from ..module import QnnModule
from ..passes.inline import emitted


def inline(module: QnnModule, inputs: list[Any], emit: Callable[[Any], Any]) -> list[Any]:
    """The outputs of a model for these inputs. Raises UnsupportedOperatorError for models that keep a state."""
    if module.states:
        raise UnsupportedOperatorError(
            f"{module.source} keeps a state between calls, and so cannot become part of another function: build it as "
            "it is"
        )
    return emitted(module.ir, inputs, emit)
