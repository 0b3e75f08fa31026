"""The oracle: runs a module operator by operator with the NumPy references. It is slow, exact, and independent of
passes and kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .module import ByPosition, QnnModule, check_inputs, run_by_sample
from .op.evaluate import interpret


class Interpreter(ByPosition):
    """Runs `main` of a QnnModule and keeps its state between calls, as the Engine does."""

    def __init__(self, module: QnnModule) -> None:
        self.module = module
        self.reset_state()

    def reset_state(self) -> None:
        """Set every state back to its initial value."""
        self._states = [state.initial for state in self.module.states]

    def run(self, inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises InputError if the inputs do not fit the model."""
        return {spec.name: value for spec, value in zip(self.module.outputs, self._run(inputs), strict=True)}

    def _run(self, inputs: Mapping[str, np.ndarray] | Sequence[np.ndarray]) -> list[np.ndarray]:
        arrays = check_inputs(inputs, self.module.inputs)
        return run_by_sample(self._run_once, arrays, self.module.inputs, self.module.outputs)

    def _run_once(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        results = interpret(self.module.ir, [*arrays, *self._states])
        count = len(self.module.outputs)
        self._states = results[count:]
        return results[:count]
