"""An engine on another machine, behind one of TVM's RPC servers that runs `.qnn` files (`qnn_ext.compat.rpc_server`).

session = tvm.rpc.connect("192.168.1.3", 9090)
engine = RemoteEngine(session, "model.qnn")
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import errors
from ..errors import TargetError
from ..module import ByPosition, check_inputs, zeros
from . import artifact
from .served import ERROR, LOAD, packed, unpacked
from .timing import Timing


class RemoteEngine(ByPosition):
    """A `.qnn` file, run where it has been uploaded to.

    inputs, outputs: as of an Engine
    """

    def __init__(self, session: Any, path: str | os.PathLike, name: str = "") -> None:
        """session: of tvm.rpc; name: what the file is called there, by default as here. It is uploaded.

        Raises ArtifactError for other files, TargetError if the server does not run them.
        """
        with artifact.opened(path) as file:  # this machine may be one that cannot load it
            model = file.model()
        self.inputs, self.outputs = model.inputs, model.outputs
        name = name or os.path.basename(path)
        session.upload(os.fspath(path), name)
        try:
            self._call = session.get_function(LOAD)(name)
        except AttributeError:
            raise TargetError(
                "the RPC server does not run .qnn files: install qnn-ext on its machine and start it there with "
                "python -m qnn_ext.compat.rpc_server, which takes the options of tvm.exec.rpc_server"
            ) from None

    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises what Engine.run raises."""
        return {spec.name: value for spec, value in zip(self.outputs, self._run(inputs), strict=True)}

    def _run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> list[np.ndarray]:
        return self._answer("run", inputs)

    def time(self, number: int = 10, repeat: int = 20, inputs: Sequence[np.ndarray] | None = None) -> Timing:
        """As Engine.time, measured there: neither the network nor Python counts."""
        inputs = inputs or zeros(self.inputs)
        (seconds,) = self._answer("time", inputs, number=number, repeat=repeat)
        return Timing(tuple(seconds.tolist()))

    def _answer(self, request: str, inputs: Any, **options: int) -> list[np.ndarray]:
        arrays = check_inputs(inputs, self.inputs)
        values, named = unpacked(self._call(request, packed(arrays, **options)))
        if ERROR in named:
            kind, message = map(str, named[ERROR])
            raise getattr(errors, kind)(message)
        return values

    def __repr__(self) -> str:
        return f"RemoteEngine({', '.join(map(str, self.inputs))})"
