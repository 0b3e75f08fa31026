"""A model and a repository as KServe's Python server takes them. Needs `pip install 'qnn-ext[kserve]'`.

    server = kserve.ModelServer(registered_models=Repository("models"))
    server.start([])

Batching of requests is the `batcher` of KServe's InferenceService, whose V1 requests a model takes too; within a
request, samples are divided among the streams of its pool. The server counts and times requests under /metrics.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

import kserve
import numpy as np
from kserve.errors import InvalidInput

from ..errors import InputError, QnnError
from ..running.engine import Engine, load
from ..running.pool import Pool
from . import repository, tensors


class QnnModel(kserve.Model):
    """A compiled model that answers V2 requests, and V1 requests if it has one input.

    name:        in the endpoints, /v2/models/NAME/infer
    source:      an engine, or the path of a `.qnn` file, which `load` loads
    streams, num_threads: see `qnn_ext.Pool`
    version:     as the answers report it

    In V2 the parameter "quantize": true lets real values be given for quantized inputs, "dequantize": true returns real
    values of quantized outputs.
    """

    def __init__(
        self,
        name: str,
        source: Engine | str | os.PathLike,
        streams: int | None = None,
        num_threads: int = 1,
        version: int | None = None,
    ) -> None:
        super().__init__(name)
        self._source, self._streams, self._num_threads, self._version = source, streams, num_threads, version
        self._engine: Engine | None = None
        self._pool: Pool | None = None

    def load(self) -> bool:
        """Load the file and prepare the streams. Raises ArtifactError, TargetError, and QnnError for a model with
        states."""
        if self._pool is None:
            self._engine = self._source if isinstance(self._source, Engine) else load(self._source)
            tensors.described([*self._engine.inputs, *self._engine.outputs])  # all have a type in the protocol
            self._pool = Pool(self._engine, self._streams, self._num_threads)
            self.ready = True
        return True

    def stop(self) -> None:
        """Answer the requests that have come, and no more."""
        self.ready = False
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def get_input_types(self) -> list[dict[str, Any]]:
        """Name, datatype and shape of each input."""
        return tensors.described(self._running()[0].inputs)

    def get_output_types(self) -> list[dict[str, Any]]:
        """Name, datatype and shape of each output."""
        return tensors.described(self._running()[0].outputs)

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """The outputs for a request. Raises InvalidInput, which the server reports with status 400."""
        try:
            if not isinstance(payload, kserve.InferRequest):
                return await self._predictions(payload)
            return await self._infer(payload)
        except InputError as error:
            raise InvalidInput(str(error)) from error

    async def _infer(self, request: Any) -> Any:
        engine, pool = self._running()
        asked = request.parameters or {}
        values = {one.name: _array(one) for one in request.inputs}
        found = await tensors.answer(pool, engine.inputs, engine.outputs, values, bool(_plain(asked.get("quantize"))))
        if _plain(asked.get("dequantize")):
            found = {
                spec.name: found[spec.name] if spec.qparams is None else spec.qparams.dequantize(found[spec.name])
                for spec in engine.outputs
            }
        outputs = [
            kserve.InferOutput(name, list(value.shape), tensors.datatype(value.dtype), np.ascontiguousarray(value))
            for name, value in found.items()
        ]
        return kserve.InferResponse(
            request.id or uuid.uuid4().hex,
            self.name,
            outputs,
            None if self._version is None else str(self._version),
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )

    async def _predictions(self, payload: Any) -> dict[str, Any]:
        engine, pool = self._running()
        found = await tensors.answer_instances(pool, engine.inputs, engine.outputs, payload)
        if len(found) == 1:
            return {"predictions": next(iter(found.values())).tolist()}
        rows = zip(*(value.tolist() for value in found.values()), strict=True)
        return {"predictions": [dict(zip(found, row, strict=True)) for row in rows]}

    def _running(self) -> tuple[Engine, Pool]:
        if self._engine is None or self._pool is None:
            raise QnnError(f"model {self.name!r} is not loaded")
        return self._engine, self._pool


class Repository(kserve.ModelRepository):
    """The models of a folder, see `repository`. While the server runs, POST /v2/repository/models/NAME/load loads a new
    model, or the newest version of one that is there, which answers until then."""

    def load_models(self) -> None:
        """Load all of them. Raises ArtifactError, TargetError."""
        for name in repository.names(self.models_dir):
            self.load_model(name)

    def load_model(self, name: str) -> bool:
        """Load one of them."""
        self.update(self._new(name))
        return True

    async def load(self, name: str) -> bool:
        """Load one of them while others answer."""
        model = await asyncio.to_thread(self._new, name)
        old = self.get_model(name)
        self.update(model)
        if old is not None:
            await asyncio.to_thread(old.stop)
        return True

    def _new(self, name: str) -> QnnModel:
        found = repository.entry(self.models_dir, name)
        model = QnnModel(name, found.path, found.streams, found.num_threads, found.version)
        model.load()
        return model


def _array(tensor: Any) -> np.ndarray:
    """The array of an input. Raises InputError."""
    try:
        array: np.ndarray = tensor.as_numpy()
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(f"input {tensor.name!r} is no {tensor.datatype} of shape {tensor.shape}: {error}") from None
    return array


def _plain(value: Any) -> Any:
    """A parameter's value, which in gRPC is wrapped."""
    return getattr(value, "bool_param", value)
