"""Tutorial 17: serve a model over HTTP, and measure it against ONNX Runtime.

    python tutorials/17_serve_http.py

The server is http_app.py, beside this file: FastAPI receives the requests, and a pool of engines computes them. This
script starts it twice, with qnn_ext and with ONNX Runtime behind the same endpoints, and sends both the same requests.
It needs the extra `serve`.

The bundled network recognizes digits in a few microseconds, so what is measured here is HTTP. With a network of your
own, `MODEL=mobilenet.onnx python tutorials/17_serve_http.py`, the runtime shows.
"""

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np

import qnn_ext

DATA = Path(qnn_ext.__file__).parent / "data"
MODEL = os.environ.get("MODEL", str(DATA / "digits_cnn_qdq.onnx"))

# 1. Start a server. It listens on a socket that is open already, so that no port is guessed and no request comes too
# early. In production this is one line: `python -m uvicorn http_app:app --app-dir tutorials`.


@contextmanager
def server(runtime: str) -> Iterator[int]:
    """The port of a server with this runtime, which ends with the block."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        # Answers leave at once instead of after the 40 ms for which Nagle's algorithm waits; connections inherit it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        command = [sys.executable, "-m", "uvicorn", "http_app:app", "--app-dir", str(Path(__file__).parent)]
        options = ["--fd", str(listening.fileno()), "--log-level", "warning", "--no-access-log"]
        environment = {**os.environ, "MODEL": MODEL, "RUNTIME": runtime}
        process = subprocess.Popen([*command, *options], env=environment, pass_fds=[listening.fileno()])
        try:
            yield listening.getsockname()[1]
        finally:
            process.terminate()
            process.wait()


running = ExitStack()
ports = {runtime: running.enter_context(server(runtime)) for runtime in ("qnn_ext", "onnxruntime")}

# 2. Ask it, as any client would.

address = f"http://127.0.0.1:{ports['qnn_ext']}"
described = httpx.get(f"{address}/model", timeout=120).json()
print(f"{described['input']}: {described['dtype']} {tuple(described['shape'])}")

random = np.random.default_rng(0)
if np.dtype(described["dtype"]).kind == "f":
    image = random.random(described["shape"]).astype(described["dtype"])
else:
    image = random.integers(0, 127, described["shape"]).astype(described["dtype"])
answer = httpx.post(f"{address}/infer", content=image.tobytes(), timeout=120)
print(f"answer: {answer.status_code}, {len(answer.content)} bytes")
print(f"half an image: {httpx.post(f'{address}/infer', content=image.tobytes()[: image.nbytes // 2]).json()['detail']}")

# 3. Load it. Eight clients on connections that stay open each send the next request when the last is answered, so that
# never more than eight are on their way: a bounded load, whose latency does not grow with the time it runs. The client
# writes HTTP by hand, because a complete library takes longer for a request than the servers do.


async def client(port: int, body: bytes, turns: Iterator[int], seconds: list[float]) -> bytes:
    """Send requests as long as there are turns; returns the last answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    content = b""
    for _ in turns:
        begin = time.perf_counter()
        writer.write(head + body)
        fields = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert fields.startswith(b"http/1.1 200"), fields
        content = await reader.readexactly(int(fields.split(b"content-length:")[1].split(b"\r\n")[0]))
        seconds.append(time.perf_counter() - begin)
    writer.close()
    return content


async def load(port: int, requests: int, clients: int = 8) -> tuple[float, list[float], bytes]:
    """Requests per second, the latency of each, and an answer."""
    turns, seconds = iter(range(requests)), []
    begin = time.perf_counter()
    answers = await asyncio.gather(*(client(port, image.tobytes(), turns, seconds) for _ in range(clients)))
    return requests / (time.perf_counter() - begin), seconds, answers[0]


# 4. Compare. The servers take turns, so that a busy moment of the machine affects both; the best of the rounds counts.

rates: dict[str, list[float]] = {runtime: [] for runtime in ports}
latencies: dict[str, list[np.ndarray]] = {runtime: [] for runtime in ports}
answers = {}
for round in range(int(os.environ.get("ROUNDS", "3")) + 1):
    for runtime, port in ports.items():
        rate, seconds, answers[runtime] = asyncio.run(load(port, requests=400))
        if round:  # the first warms up
            rates[runtime].append(rate)
            latencies[runtime].append(np.percentile(seconds, [50, 99]))
for runtime in ports:
    median, worst = 1e3 * np.min(latencies[runtime], axis=0)
    print(f"{runtime:12} {max(rates[runtime]):6.0f} requests/s, p50 {median:5.2f} ms, p99 {worst:5.2f} ms")
print(f"same answer: {answers['qnn_ext'] == answers['onnxruntime']}")
running.close()
