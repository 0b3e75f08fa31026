"""An HTTP server of one ONNX model, for tutorial 17: FastAPI, and behind it a pool of engines.

    MODEL=model.onnx python -m uvicorn http_app:app --app-dir tutorials

POST /infer takes the bytes of the model's input and returns those of its first output; GET /model says what they are.
RUNTIME=onnxruntime runs the same file in ONNX Runtime instead, in the same frame, to compare. STREAMS is the number of
requests computed at the same time.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import numpy as np
from fastapi import FastAPI, HTTPException, Request, Response

import qnn_ext

MODEL = os.environ["MODEL"]
RUNTIME = os.environ.get("RUNTIME", "qnn_ext")
STREAMS = int(os.environ.get("STREAMS", os.cpu_count() or 1))
WAITING = 64  # requests in the house; more are sent away at once rather than late

engine = qnn_ext.build(qnn_ext.from_onnx(MODEL), num_threads=1)  # or qnn_ext.load("model.qnn"), built elsewhere
image = engine.inputs[0]
SIZE = np.dtype(image.dtype).itemsize * int(np.prod(image.shape))
Infer = Callable[[np.ndarray], Awaitable[np.ndarray]]


@asynccontextmanager
async def with_pool() -> AsyncIterator[Infer]:
    """The model as a coroutine: awaiting a request leaves the event loop free for others."""
    with qnn_ext.Pool(engine, streams=STREAMS) as pool:

        async def infer(values: np.ndarray) -> np.ndarray:
            return (await pool.submit((values,)))[engine.outputs[0].name]

        yield infer


@asynccontextmanager
async def with_onnxruntime() -> AsyncIterator[Infer]:
    """The same in ONNX Runtime: one thread for each request, STREAMS requests at the same time."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(MODEL, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    with ThreadPoolExecutor(STREAMS) as threads:

        async def infer(values: np.ndarray) -> np.ndarray:
            loop = asyncio.get_running_loop()
            return (await loop.run_in_executor(threads, session.run, None, {name: values}))[0]

        yield infer


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with with_pool() if RUNTIME == "qnn_ext" else with_onnxruntime() as app.state.infer:
        app.state.waiting = 0
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/model")
async def model() -> dict[str, object]:
    return {"input": image.name, "shape": image.shape, "dtype": image.dtype, "runtime": RUNTIME}


@app.post("/infer")
async def infer(request: Request) -> Response:
    body = await request.body()
    if len(body) != SIZE:
        raise HTTPException(400, f"{image} takes {SIZE} bytes, found {len(body)}")
    if app.state.waiting >= WAITING:
        raise HTTPException(503, "busy", {"Retry-After": "1"})
    app.state.waiting += 1
    try:
        found = await app.state.infer(np.frombuffer(body, image.dtype).reshape(image.shape))
    finally:
        app.state.waiting -= 1
    return Response(found.tobytes(), media_type="application/octet-stream")
