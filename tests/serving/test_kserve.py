"""KServe's server with a repository of models, on the loopback: V2 metadata and answers, V1, metrics, new versions."""

import json
import shutil
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import qnn_ext
from tests.cases.bundled import module_of
from tests.serving.models import IMAGES, repository_with

pytest.importorskip("kserve", reason="needs KServe's Python server: pip install 'qnn-ext[kserve]'")
httpx = pytest.importorskip("httpx", reason="needs the extra 'serve'")

MODELS = {"digits": "digits_cnn_int8.tflite", "float": "digits_cnn_float32.onnx"}


@pytest.fixture(scope="module")
def engines():
    return {name: qnn_ext.build(module_of(file), num_threads=1) for name, file in MODELS.items()}


@pytest.fixture(scope="module")
def folder(engines, tmp_path_factory):
    return repository_with(tmp_path_factory.mktemp("models"), engines)


@pytest.fixture(scope="module")
def client(folder, tmp_path_factory):
    """A client of a server of the folder."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.txt"
    options = ["--models_dir", folder, "--http_port", str(port), "--enable_grpc", "false"]
    with log.open("w") as output:
        command = [sys.executable, "-m", "qnn_ext.serving", *options]
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        for _ in range(1200):
            assert server.poll() is None, log.read_text()
            try:
                client.get("/v2/health/live")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield client
    server.terminate()
    assert server.wait(60) is not None


def tensor(engine, array):
    spec = engine.inputs[0]
    kind = {"int8": "INT8", "float32": "FP32", "float64": "FP64"}[str(array.dtype)]
    return {"name": spec.name, "datatype": kind, "shape": list(array.shape), "data": array.reshape(-1).tolist()}


def infer(client, name, *inputs, **more):
    return client.post(f"/v2/models/{name}/infer", json={"inputs": list(inputs), **more})


def outputs(answer):
    assert answer.status_code == 200, answer.text
    dtypes = {"INT8": np.int8, "FP32": np.float32}
    return {
        one["name"]: np.array(one["data"], dtypes[one["datatype"]]).reshape(one["shape"])
        for one in answer.json()["outputs"]
    }


def test_metadata(client, engines):
    for name, engine in engines.items():
        found = client.get(f"/v2/models/{name}").json()
        for specs, described in ((engine.inputs, found["inputs"]), (engine.outputs, found["outputs"])):
            assert [one["name"] for one in described] == [spec.name for spec in specs]
            assert [tuple(one["shape"]) for one in described] == [spec.of_batch(-1) for spec in specs]
        assert client.get(f"/v2/models/{name}/ready").json() == {"name": name, "ready": True}
    assert client.get("/v2/models/digits").json()["inputs"][0]["datatype"] == "INT8"
    assert sorted(client.get("/v2/models").json()["models"]) == sorted(engines)


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_the_engines(client, engines, name):
    engine = engines[name]
    for image in IMAGES[name][:10]:
        found = outputs(infer(client, name, tensor(engine, image)))
        expected = engine.run((image,))
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert found[key].dtype == value.dtype and np.array_equal(found[key], value)


def test_a_batch_is_divided(client, engines):
    """The float network's batch may have any size."""
    engine, images = engines["float"], np.concatenate(IMAGES["float"][:5])
    assert client.get("/v2/models/float").json()["inputs"][0]["shape"] == [-1, 1, 8, 8]
    found = outputs(infer(client, "float", tensor(engine, images)))
    assert all(np.array_equal(found[key], value) for key, value in engine.run((images,)).items())


def test_binary_tensors(client, engines):
    """The protocol's extension for binary data, in both directions."""
    engine, image = engines["digits"], IMAGES["digits"][3]
    described = {**tensor(engine, image), "parameters": {"binary_data_size": image.nbytes}}
    del described["data"]
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    fields = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    answer = client.post("/v2/models/digits/infer", content=head + image.tobytes(), headers=fields)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["inference-header-content-length"])
    assert answer.content[length:] == engine(image).tobytes()


def test_real_values(client, engines):
    engine, image = engines["digits"], IMAGES["float"][5].reshape(1, 8, 8, 1)
    asked = {"quantize": True, "dequantize": True}
    found = outputs(infer(client, "digits", tensor(engine, image), parameters=asked))
    expected = engine.run((image,), quantize=True, dequantize=True)
    assert all(np.array_equal(found[key], value) and found[key].dtype == value.dtype for key, value in expected.items())


def test_v1_divides_a_batch(client, engines):
    """As KServe's batcher sends it, each sample for itself on the pool."""
    engine, images = engines["digits"], np.concatenate(IMAGES["digits"][:7])
    found = client.post("/v1/models/digits:predict", json={"instances": images.tolist()}).json()["predictions"]
    assert found == [engine(image[None])[0].tolist() for image in images]


def test_wrong_requests(client, engines):
    engine, image = engines["digits"], IMAGES["digits"][0]
    right = tensor(engine, image)
    for wrong, said in (
        ({**right, "name": "x"}, "unknown input 'x'"),
        ({**right, "shape": [1, 4, 16, 1]}, "shape"),
        ({**right, "data": right["data"][1:]}, "is no INT8 of shape"),
        ({**right, "data": [1000] * 64}, "is no INT8 of shape"),
        ({**right, "datatype": "FP32"}, "int8"),
    ):
        answer = infer(client, "digits", wrong)
        assert answer.status_code == 400 and said in answer.json()["error"], answer.text
    assert infer(client, "nothing", right).status_code == 404
    answer = client.post("/v1/models/digits:predict", json={"instances": [[1, 2]]})
    assert answer.status_code == 400 and "an instance of" in answer.json()["error"]


def test_metrics_count_requests(client, engines):
    def count():
        name = 'request_predict_seconds_count{model_name="digits"} '
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = count()
    for _ in range(3):
        infer(client, "digits", tensor(engines["digits"], IMAGES["digits"][0]))
    assert count() == before + 3


def test_a_new_version_and_a_new_model(client, engines, folder):
    """Loaded while the server runs; the newest version answers."""
    other = qnn_ext.build(module_of("digits_cnn_uint8.tflite"), num_threads=1)
    (folder / "late" / "1").mkdir(parents=True)
    engines["digits"].save(folder / "late" / "1" / "model.qnn")
    assert client.get("/v2/models/late").status_code == 404
    assert client.post("/v2/repository/models/late/load").status_code == 200
    image = IMAGES["digits"][2]
    assert infer(client, "late", tensor(engines["digits"], image)).json()["model_version"] == "1"
    (folder / "late" / "10").mkdir()
    other.save(folder / "late" / "10" / "model.qnn")
    assert client.get("/v2/models/late").json()["inputs"][0]["datatype"] == "INT8"
    assert client.post("/v2/repository/models/late/load").status_code == 200
    assert client.get("/v2/models/late").json()["inputs"][0]["datatype"] == "UINT8"
    assert client.post("/v2/repository/models/late/unload").status_code == 200
    assert client.get("/v2/models/late").status_code == 404
    shutil.rmtree(folder / "late")
    for name in ("late", "..", "%2e%2e"):
        assert client.post(f"/v2/repository/models/{name}/load").status_code in (404, 503)


def test_a_repository_that_is_wrong(tmp_path):
    command = [sys.executable, "-m", "qnn_ext.serving", "--models_dir", tmp_path / "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no such folder of models" in done.stderr
