"""An imported model inside a function of expressions: its bindings, emitted again with other inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ..errors import UnsupportedOperatorError
from ..module import QnnModule
from ..passes.inline import inlined
from ..passes.rewrite import bindings_of, substitute


def inline(module: QnnModule, inputs: list[Any], emit: Callable[[Any], Any]) -> list[Any]:
    """The outputs of a model for these inputs. Raises UnsupportedOperatorError for models that keep a state."""
    if module.states:
        raise UnsupportedOperatorError(
            f"{module.source} keeps a state between calls, and so cannot become part of another function: build it as "
            "it is"
        )
    main = inlined(module.ir)["main"]
    environment: dict[Any, Any] = dict(zip(main.params, inputs, strict=True))
    for binding in bindings_of(main):
        value = substitute(binding.value, environment)
        environment[binding.var] = value if isinstance(value, relax.Tuple) else emit(value)
    result = substitute(main.body.body, environment)
    if isinstance(result, relax.Tuple):
        return list(result.fields)
    return [emit(relax.TupleGetItem(result, index)) for index in range(len(module.outputs))]
