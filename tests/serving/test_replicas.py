"""Replicas on a local Ray node, behind KServe's server. Skips where Ray Serve or KServe is absent."""

import subprocess
import sys
import textwrap

import pytest

import qnn_ext
from tests.cases.bundled import module_of

pytest.importorskip("kserve", reason="needs KServe's Python server: pip install 'qnn-ext[kserve]'")
pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'kserve[ray]'")

# Ray Serve and the server stay in a process of their own. It asks itself, as the server would for a request
SCRIPT = """
import asyncio, os, sys
import numpy as np
import kserve, ray
from kserve.protocol.dataplane import DataPlane
from qnn_ext import load
from qnn_ext.serving.replicas import replicated

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
model = replicated("digits", sys.argv[1], replicas=2)
engine = load(sys.argv[1])
models = kserve.ModelRepository()
models.update(model)
server = DataPlane(models)
images = np.random.default_rng(0).integers(-128, 128, (12, *engine.inputs[0].shape)).astype(np.int8)

async def ask(image):
    tensor = kserve.InferInput(engine.inputs[0].name, list(image.shape), "INT8", image.reshape(-1).tolist())
    request = kserve.InferRequest("digits", [tensor])
    answer, _ = await server.infer("digits", request)
    return answer.outputs[0].as_numpy()

async def main():
    described = await server.model_metadata("digits")
    name = engine.inputs[0].name
    assert described["inputs"] == [{"name": name, "datatype": "INT8", "shape": [1, 8, 8, 1]}], described
    return await asyncio.gather(*map(ask, images))

for image, found in zip(images, asyncio.run(main())):
    assert found.dtype == np.int8 and np.array_equal(found, engine(image))
from ray import serve
replicas = serve.status().applications["digits"].deployments["digits"].replica_states
assert dict(replicas) == {"RUNNING": 2}, replicas
serve.shutdown()
ray.shutdown()
print("equal")
"""


def test_two_replicas_answer_as_the_engine(tmp_path, environment):
    path = tmp_path / "digits.qnn"
    qnn_ext.build(module_of("digits_cnn_int8.tflite"), num_threads=1).save(path)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), path],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.endswith("equal\n"), done.stdout + done.stderr
