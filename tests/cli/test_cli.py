"""The command line: results, JSON, exit codes, and one clear line for every mistake."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import qnn_ext
from qnn_ext.cli.common import spec_data
from qnn_ext.cli.formats import TITLES, find_params, recognize
from qnn_ext.targets.architectures import host_architecture
from tests.cpus import runs_here

ROOT = Path(__file__).parents[2]
DATA = ROOT / "qnn_ext" / "data"
MODEL = DATA / "digits_cnn_int8.tflite"
UINT8 = DATA / "digits_cnn_uint8.tflite"
DIGIT = ROOT / "tutorials" / "digit.png"
LABELS = DATA / "digits_labels.txt"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("compiled") / "digits.qnn"
    qnn_ext.build(qnn_ext.from_tflite(MODEL), num_threads=1).save(path)
    return path


# ---- what each command does --------------------------------------------------------------------------------------


def test_compile_writes_a_file_that_runs(cli, tmp_path):
    output = tmp_path / "m.qnn"
    code, out, _ = cli("compile", MODEL, "-o", output, "--target", "x86-64", "--threads", "1")
    assert code == 0 and "kernels" in out
    engine = qnn_ext.load(output)
    assert engine.target["mcpu"] == "x86-64"
    assert engine(np.zeros((1, 8, 8, 1), np.int8)).shape == (1, 10)


def run_without(modules, *args) -> str:
    """What `python -m qnn_ext` prints, which must not import these modules."""
    code = f"import runpy, sys; sys.argv[1:] = {list(map(str, args))}\n"
    code += "try:\n    runpy.run_module('qnn_ext', run_name='__main__')\n"
    code += f"finally:\n    assert not {set(modules)} & set(sys.modules), sorted(sys.modules)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_as_a_module():
    """`python -m qnn_ext`, without importing what --help does not need."""
    assert "quantize    Quantize a float model" in run_without(["tvm", "numpy", "qnn_ext.cli.common"], "--help")


def test_a_compiled_file_is_described_without_numpy(compiled):
    assert re.search(r"\d+ kernels", run_without(["tvm", "tvm_ffi", "numpy"], "inspect", compiled))
    data = json.loads(run_without(["tvm", "tvm_ffi", "numpy", "rich"], "inspect", compiled, "--json"))
    engine = qnn_ext.load(compiled)
    for kind, specs in (("inputs", engine.inputs), ("outputs", engine.outputs)):
        assert data[kind] == [spec_data(spec) for spec in specs]


def test_numpys_threads_do_not_wait_awake(compiled, tmp_path):
    """OpenBLAS, which NumPy's wheels bring, has them look for work for some 25 ms of CPU time each."""
    np.save(tmp_path / "x.npy", np.zeros((1, 8, 8, 1), np.int8))
    command = ["run", str(compiled), "--input", str(tmp_path / "x.npy")]
    code = f"import os, sys; sys.argv[1:] = {command}\nfrom qnn_ext.cli import main\ntry:\n    main()\n"
    code += "finally:\n    assert 'numpy' in sys.modules and os.environ['OPENBLAS_THREAD_TIMEOUT'] == wanted"
    for wanted, given in (("20", {}), ("9", {"OPENBLAS_THREAD_TIMEOUT": "9"})):
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"} | given
        subprocess.run([sys.executable, "-c", f"wanted = '{wanted}'\n{code}"], env=environment, check=True)


def test_characters_that_the_output_cannot_encode(compiled):
    command = [sys.executable, "-m", "qnn_ext", "inspect", compiled]
    found = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert b"1x8x8x1" in found.stdout


def test_precision_of_float_products(cli, tmp_path):
    output = tmp_path / "m.qnn"
    options = "--target", "avx2", "--threads", "1", "--precision", "bfloat16"
    assert cli("compile", DATA / "digits_cnn_float32.onnx", "-o", output, *options)[0] == 0
    if not runs_here("haswell"):
        pytest.skip("this machine cannot load code for AVX2")
    assert any("bfloat16" in kernel.implementation for kernel in qnn_ext.load(output).kernels)


def test_compile_json_and_batch(cli, tmp_path):
    code, out, _ = cli("compile", MODEL, "-o", tmp_path / "m.qnn", "--batch", "3", "--numerics", "tflite", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["inputs"][0]["shape"] == [3, 8, 8, 1] and data["outputs"][0]["shape"] == [3, 10]
    assert data["bytes"] == (tmp_path / "m.qnn").stat().st_size


def test_compile_names_its_output_after_the_model(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("compile", MODEL)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["digits_cnn_int8.qnn"]


def test_run_prints_the_label_of_a_picture(cli, compiled):
    code, out, _ = cli("run", compiled, "--input", DIGIT, "--labels", LABELS, "--top", "2")
    rows = [line.split("│") for line in out.splitlines() if line.startswith("│")]
    assert code == 0 and len(rows) == 2
    assert rows[0][1].strip() == rows[0][2].strip() == "3"


def test_run_compiles_a_model_first(cli):
    code, out, _ = cli("run", MODEL, "--input", DIGIT, "--json", "--threads", "1")
    top = json.loads(out)["results"][0]["outputs"][0]["top"]
    assert code == 0 and top[0]["index"] == 3 and len(top) == 5
    assert top[0]["value"] == pytest.approx(1, abs=0.05)


def test_run_arrays(cli, compiled, tmp_path, rng):
    """Integers as they are, floats quantized, with or without the batch dimension; outputs as the engine gives them."""
    image = rng.integers(-128, 128, (1, 8, 8, 1), dtype=np.int8)
    engine = qnn_ext.load(compiled)
    qparams = engine.inputs[0].qparams
    real = qparams.scale * (image.astype(np.float32) - qparams.zero_point)
    np.save(tmp_path / "integers.npy", image)
    np.save(tmp_path / "floats.npy", real[0])
    np.savez(tmp_path / "one.npz", image)
    np.savez(tmp_path / "named.npz", **{engine.inputs[0].name: real})
    name = engine.inputs[0].name
    for file in ("integers.npy", "floats.npy", "one.npz", "named.npz", f"{name}={tmp_path}/floats.npy"):
        source = file if "=" in file else tmp_path / file
        code, _, _ = cli("run", compiled, "--input", source, "--output", tmp_path / "y.npy")
        assert code == 0
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), engine(image))
    cli("run", compiled, "--input", tmp_path / "integers.npy", "--output", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as stored:
        np.testing.assert_array_equal(stored[engine.outputs[0].name], engine(image))


def test_run_several_pictures(cli, compiled):
    code, out, _ = cli("run", compiled, "--input", DIGIT, "--input", DIGIT, "--json", "--top", "1")
    results = json.loads(out)["results"]
    assert code == 0 and len(results) == 2 and results[0] == results[1]


def test_run_a_folder(cli, fails, compiled, tmp_path, rng):
    """Every file of a folder that can be an input, by name; bytes are the input's values."""
    image = rng.integers(-128, 128, (1, 8, 8, 1), dtype=np.int8)
    (tmp_path / "photos").mkdir()
    assert "neither images nor" in fails("run", compiled, "--input", tmp_path / "photos")
    shutil.copy(DIGIT, tmp_path / "photos" / "b.PNG")
    np.save(tmp_path / "photos" / "a.npy", image)
    (tmp_path / "photos" / "c.raw").write_bytes(image.tobytes())
    (tmp_path / "photos" / "notes.txt").write_text("no input")
    code, out, _ = cli("run", compiled, "--input", tmp_path / "photos", "--json")
    results = json.loads(out)["results"]
    assert code == 0 and [Path(result["input"]).name for result in results] == ["a.npy", "b.PNG", "c.raw"]
    assert results[0]["outputs"] == results[2]["outputs"] != results[1]["outputs"]
    (tmp_path / "short.raw").write_bytes(bytes(63))
    assert "63 bytes" in fails("run", compiled, "--input", tmp_path / "short.raw")


def test_run_fills_batches(cli, fails, tmp_path, rng):
    """Samples of one file each, five for a batch of two, give what they give together; the filling is not shown."""
    cli("compile", MODEL, "-o", tmp_path / "two.qnn", "--batch", "2", "--threads", "1")
    images = rng.integers(-128, 128, (5, 1, 8, 8, 1), dtype=np.int8)
    files = []
    for index, image in enumerate(images):
        files.append(tmp_path / f"{index}.npy")
        np.save(files[-1], image)
    options = [part for file in files for part in ("--input", file)]
    code, out, _ = cli("run", tmp_path / "two.qnn", *options, "--json", "--top", "10")
    results = json.loads(out)["results"]
    assert code == 0 and [result["input"] for result in results] == list(map(str, files))
    engine = qnn_ext.load(tmp_path / "two.qnn")
    for index, result in enumerate(results):
        (real,) = engine.run([np.concatenate([images[index]] * 2)], dequantize=True).values()
        found = {entry["index"]: entry["value"] for entry in result["outputs"][0]["top"]}
        np.testing.assert_array_equal([found[i] for i in range(10)], real[0])
    assert cli("run", tmp_path / "two.qnn", "--input", files[0], "--output", tmp_path / "y.npy")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), engine(np.concatenate([images[0]] * 2))[:1])
    np.save(tmp_path / "whole.npy", images[:2, 0])
    assert cli("run", tmp_path / "two.qnn", "--input", tmp_path / "whole.npy", "--output", tmp_path / "y.npy")[0] == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), engine(images[:2, 0]))
    np.save(tmp_path / "three.npy", images[:3, 0])
    assert "(1, 8, 8, 1)" in fails("run", tmp_path / "two.qnn", "--input", tmp_path / "three.npy")


def test_bench(cli, compiled):
    code, out, _ = cli("bench", compiled, "--threads", "1", "--repeat", "3", "--number", "2", "--profile", "--json")
    data = json.loads(out)
    assert code == 0 and data["threads"] == 1 and 0 < data["best_ms"] <= data["median_ms"]
    assert len(data["layers"]) == len(qnn_ext.load(compiled).kernels)
    assert data["macs"] == sum(layer["macs"] for layer in data["layers"]) > 0
    code, out, _ = cli("bench", compiled, "--threads", "1", "--repeat", "2", "--profile")
    assert code == 0 and "GOP/s" in out and "1 thread," in out


def test_bench_says_how_many_threads_run(cli, tmp_path):
    cli("compile", MODEL, "-o", tmp_path / "small.qnn")
    _, out, _ = cli("bench", tmp_path / "small.qnn", "--threads", "2", "--repeat", "1", "--number", "1", "--json")
    data = json.loads(out)
    assert data["threads"] == qnn_ext.load(tmp_path / "small.qnn", num_threads=2).used_threads == 1
    assert data["most_threads"] == 2
    _, out, _ = cli("bench", tmp_path / "small.qnn", "--threads", "2", "--repeat", "1", "--number", "1")
    assert "1 thread of 2" in out


def test_bench_of_real_inputs_for_a_while(cli, compiled):
    options = ("--duration", "0.05", "--warm-up", "0.02", "--input", DIGIT, "--input", DIGIT)
    code, out, _ = cli("bench", compiled, *options, "--json")
    data = json.loads(out)
    assert code == 0 and data["number"] == 1 and data["repeat"] > 20
    assert data["best_ms"] <= data["latency_ms"]["p50"] <= data["latency_ms"]["p99"]
    code, out, _ = cli("bench", compiled, *options)
    assert code == 0 and "calls took at most: 50 %" in out and "calls/s" in out


def test_bench_says_why_there_is_no_energy(cli, compiled, monkeypatch, tmp_path):
    monkeypatch.setattr("qnn_ext.racing.power.Meter.__init__.__defaults__", (tmp_path,))
    code, out, _ = cli("bench", compiled, "--repeat", "1", "--number", "1", "--power", "--json")
    data = json.loads(out)
    assert code == 0 and data["joules"] is None and "no RAPL counter" in data["power_problem"]


def test_bench_compares_runtimes(cli, fails, compiled):
    pytest.importorskip("ai_edge_litert")
    code, out, _ = cli("bench", MODEL, "--compare", "litert,onnxruntime", "--repeat", "2", "--threads", "1", "--json")
    ours, litert, other = json.loads(out)["compared"]
    assert code == 0 and ours["runtime"] == "qnn_ext" and ours["ratio"] == 1.0 and ours["turns"] == 2
    assert litert["equal"] == 1.0 and litert["largest_difference"] == 0.0 and litert["ratio"] > 0
    assert other["problem"] == "does not read TFLite (.tflite) files"
    code, out, _ = cli("bench", MODEL, "--compare", "litert,onnxruntime", "--repeat", "1", "--threads", "1")
    assert code == 0 and "at most 1 thread each" in out and "ONNX Runtime: does not read" in out
    assert "no such runtime" in fails("bench", MODEL, "--compare", "tensorrt")
    assert "give the model that it was compiled from" in fails("bench", compiled, "--compare", "litert")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not let a process choose cores")
def test_bench_on_certain_cores(cli, fails, compiled, tmp_path):
    before = os.sched_getaffinity(0)
    first = min(before)
    code, out, _ = cli("bench", MODEL, "--repeat", "1", "--number", "1", "--cores", f"{first}-{first}")
    assert code == 0 and f"1 thread on core {first}" in out
    data = json.loads(cli("bench", MODEL, "--repeat", "1", "--number", "1", "--cores", f"{first}", "--json")[1])
    assert data["cores"] == [first] and data["most_threads"] == 1
    assert "may not run on 9999: its cores are" in fails("bench", compiled, "--cores", f"{first},9999")
    assert os.sched_getaffinity(0) == before
    for wrong in ("", "x", "3-1", "-1", "0,,1"):
        assert cli("bench", compiled, "--cores", wrong)[0] == 2


def test_bench_of_streams(cli, compiled):
    options = ("bench", compiled, "--threads", "1", "--repeat", "1", "--streams", "2", "--seconds", "0.05")
    code, out, _ = cli(*options, "--json")
    streams = json.loads(out)["streams"]
    assert code == 0 and streams["count"] == 2 and streams["requests_per_second"] > 0
    assert 0 < streams["latency_ms"]["p50"] <= streams["latency_ms"]["p99"]
    code, out, _ = cli(*options)
    assert code == 0 and "2 streams of 1 thread: " in out and "requests/s, latency median" in out


def test_inspect_model(cli):
    code, out, _ = cli("inspect", MODEL, "--json")
    data = json.loads(out)
    assert code == 0 and data["imports"] and data["notes"] == []
    counts = {}
    for entry in data["operators"]:
        counts[entry["operator"]] = counts.get(entry["operator"], 0) + entry["count"]
        assert entry["runs_in"] == "integer"
    assert counts["CONV_2D"] == 5 and counts["DEPTHWISE_CONV_2D"] == 2
    assert data["weights"]["int8"] > 8000
    assert data["inputs"][0]["qparams"]["zero_point"] == -128
    code, out, _ = cli("inspect", MODEL)
    assert code == 0 and "int8/channel" in out and "weights: int8" in out


def test_inspect_tells_float_from_integer(cli):
    _, out, _ = cli("inspect", DATA / "digits_cnn_dynamic.tflite", "--json")
    kinds = {(entry["operator"], entry["runs_in"]) for entry in json.loads(out)["operators"]}
    assert ("CONV_2D", "float and integer") in kinds and ("SOFTMAX", "float, as in the model") in kinds


def test_inspect_begins_with_the_summary_and_shows_one_layer(cli, fails, compiled):
    _, out, _ = cli("inspect", compiled)
    assert out.index("kernels: ") < out.index("kernels for ")
    name = json.loads(cli("inspect", compiled, "--json")[1])["variants"][0]["kernels"][2]["sources"][0]
    for text in (name, name.upper(), f"*{name[-6:]}"):
        code, out, _ = cli("inspect", compiled, "--layer", text, "--json")
        kernels = json.loads(out)["variants"][0]["kernels"]
        assert code == 0 and name in [source for kernel in kernels for source in kernel["sources"]]
    assert "no kernel computes" in fails("inspect", compiled, "--layer", "nonsense")
    assert "give a --target" in fails("inspect", MODEL, "--layer", name)
    assert name in cli("inspect", MODEL, "--target", "native", "--layer", name)[1]


def _piped(*arguments, **environment) -> subprocess.CompletedProcess:
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "qnn_ext", *map(str, arguments)]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True)


def test_a_minus_is_the_standard_output(fails, compiled, tmp_path):
    done = _piped("compile", MODEL, "-o", "-", "--threads", "1")
    assert done.returncode == 0 and b"kernels" in done.stderr
    (tmp_path / "model.qnn").write_bytes(done.stdout)
    sample = np.zeros((1, 8, 8, 1), np.int8)
    expected = qnn_ext.load(compiled)(sample)
    np.testing.assert_array_equal(qnn_ext.load(tmp_path / "model.qnn")(sample), expected)
    np.save(tmp_path / "zeros.npy", sample)
    done = _piped("run", compiled, "--input", tmp_path / "zeros.npy", "--output", "-")
    (tmp_path / "y.npy").write_bytes(done.stdout)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), expected)
    assert "both write to the standard output" in fails("compile", MODEL, "-o", "-", "--json")
    assert not Path("-").exists()


def test_compiled_for_real_values(cli, tmp_path):
    code, _, _ = cli("compile", MODEL, "-o", tmp_path / "real.qnn", "--io", "float32")
    engine = qnn_ext.load(tmp_path / "real.qnn")
    assert code == 0 and engine.inputs[0].dtype == engine.outputs[0].dtype == "float32"


@pytest.mark.parametrize(
    ("words", "index", "expected"),
    [
        ("qnn-ext co", 1, {"compare", "compile", "completion"}),
        ("qnn-ext run --norm", 2, {"--normalize"}),
        ("qnn-ext compile --precision ", 3, {"float32", "bfloat16", "float16"}),
        ("qnn-ext completion ", 2, {"bash", "fish", "zsh"}),
    ],
)
def test_a_shell_completes(words, index, expected):
    done = _piped(_QNN_EXT_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(index))
    assert done.returncode == 0 and not done.stderr
    assert {line.partition(",")[2] for line in done.stdout.decode().splitlines()} == expected


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_the_completion_script_is_bash(cli, tmp_path):
    code, out, _ = cli("completion", "bash")
    (tmp_path / "script").write_text(out)
    found = subprocess.run(["bash", "-c", f"source {tmp_path}/script && complete -p qnn-ext"], capture_output=True)
    assert code == 0 and found.returncode == 0 and b"_qnn_ext_completion" in found.stdout


BUNDLED = {
    "digits_cnn_int8.tflite": "tflite",
    "digits_cnn_qdq.onnx": "onnx",
    "digits_cnn_qoperator.onnx": "onnx",
    "digits_cnn_dynamic.onnx": "onnx",
    "digits_transformer_qdq.onnx": "onnx",
    "digits_cnn_pt2e_x86.pt2": "pt2",
    "digits_cnn_pt2e_xnnpack.pt2": "pt2",
    "digits_transformer_pt2e_x86.pt2": "pt2",
    "digits_cnn_eager.pt": "torchscript",
    "digits_cnn_fx.pt": "torchscript",
    "digits_mxnet-symbol.json": "mxnet",
}
FRAMEWORKS = {"tflite": "tflite", "onnx": "onnx", "pt2": "torch", "torchscript": "torch", "mxnet": "tvm"}


@pytest.fixture(params=BUNDLED)
def bundled(request) -> Path:
    """A bundled model; the test is skipped where its framework is missing."""
    pytest.importorskip(FRAMEWORKS[BUNDLED[request.param]])
    return DATA / request.param


@pytest.mark.one_in(2)
def test_formats_are_recognized_by_content(bundled, compiled, tmp_path):
    """A model by any other name is the same model."""
    shutil.copy(bundled, tmp_path / "model.qnn")
    assert recognize(tmp_path / "model.qnn") == BUNDLED[bundled.name]
    shutil.copy(compiled, tmp_path / "model.onnx")
    assert recognize(tmp_path / "model.onnx") == "qnn"


@pytest.mark.one_in(2)
def test_every_format_runs(cli, bundled, tmp_path):
    """compile, then run on a picture: the digit is named whatever the framework."""
    shape = input_shape(bundled)
    output = tmp_path / "m.qnn"
    code, _, err = cli("compile", bundled, "-o", output, "--threads", "1", *shape)
    assert (code, err) == (0, "")
    code, out, _ = cli("run", output, "--input", DIGIT, "--json")
    assert code == 0 and json.loads(out)["results"][0]["outputs"][0]["top"][0]["index"] == 3


@pytest.mark.one_in(2)
def test_every_format_is_inspected(cli, bundled):
    shape = input_shape(bundled)
    code, out, _ = cli("inspect", bundled, "--json", *shape)
    data = json.loads(out)
    assert code == 0 and data["imports"] and data["format"] == BUNDLED[bundled.name]
    assert data["operators"] and data["weights"] and data["coverage"]["macs"] > 100_000
    in_float = {entry["operator"] for entry in data["coverage"]["in_float"]}
    assert in_float <= {"matmul"} and ("transformer_pt2e" in bundled.name or not in_float)
    code, out, _ = cli("inspect", bundled, *shape)
    assert code == 0 and TITLES[data["format"]] in out and "integer coverage: " in out


def input_shape(path: Path) -> list[str]:
    """--shape for the formats that do not record the shapes of their inputs."""
    names = {"torchscript": "image", "mxnet": "data"}
    form = BUNDLED[path.name]
    return ["--shape", f"{names[form]}=1,1,8,8"] if form in names else []


def test_batch_of_every_format(cli, fails, tmp_path):
    """--batch sets the first dimension of every input, or one line says why the model is made for one size only."""
    pytest.importorskip("onnx")
    inspected = cli("inspect", DATA / "digits_lstm_int8.tflite", "--batch", "3", "--json")[1]
    assert json.loads(inspected)["inputs"][0]["shape"] == [3, 8, 8]
    assert "Reshape" in fails("inspect", DATA / "digits_cnn_qdq.onnx", "--batch", "3")


def test_batch_of_a_program_that_leaves_it_open(cli, fails, tmp_path):
    torch = pytest.importorskip("torch")

    class Sum(torch.nn.Module):
        def forward(self, x, y):
            return x.relu() + y

    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    for name, sizes in (("batch", {0: batch}), ("both", {0: batch, 1: length})):
        args = (torch.ones(2, 5), torch.ones(2, 5))
        torch.export.save(torch.export.export(Sum(), args, dynamic_shapes=(sizes, sizes)), tmp_path / f"{name}.pt2")
    inspected = cli("inspect", tmp_path / "batch.pt2", "--batch", "3", "--json")[1]
    assert [spec["shape"] for spec in json.loads(inspected)["inputs"]] == [[3, 5], [3, 5]]
    assert "--shape x=1,5 or --batch 1" in fails("inspect", tmp_path / "batch.pt2")
    assert "has the symbolic shape" in fails("inspect", tmp_path / "both.pt2", "--batch", "3")
    shapes = "--shape", "x=3,4", "--shape", "y=3,4"
    inspected = cli("inspect", tmp_path / "both.pt2", "--batch", "3", *shapes, "--json")[1]
    assert json.loads(inspected)["inputs"][1]["shape"] == [3, 4]


def test_inspect_compiled(cli, compiled):
    code, out, _ = cli("inspect", compiled, "--json")
    data = json.loads(out)
    assert code == 0 and data["format"] == "qnn"
    assert [len(variant["kernels"]) for variant in data["variants"]] == [len(qnn_ext.load(compiled).kernels)]
    code, out, _ = cli("inspect", compiled)
    assert code == 0 and "kernels: " in out


def test_inspect_for_a_target(cli, fails, compiled):
    """A model file, compiled for targets: their kernels, as of a compiled file. Nothing changes without a target."""
    code, out, _ = cli("inspect", MODEL, "--target", "rpi4,x86-64", "--json")
    data = json.loads(out)
    assert code == 0 and [variant["target"]["mcpu"] for variant in data["variants"]] == ["cortex-a72", "x86-64"]
    of_file = json.loads(cli("inspect", compiled, "--json")[1])["variants"][0]
    for variant, architecture in zip(data["variants"], ("arm_cpu", "x86"), strict=True):
        assert variant.keys() == of_file.keys()
        assert all(kernel["implementation"].endswith(architecture) for kernel in variant["kernels"] if kernel["macs"])
    plain = json.loads(cli("inspect", MODEL, "--json")[1])
    assert plain == {key: value for key, value in data.items() if key != "variants"}
    text, short = (cli("inspect", MODEL, *options)[1] for options in (["--target", "rpi4"], []))
    assert text.startswith(short) and "kernels for cortex-a72" in text[len(short) :]
    assert fails("inspect", MODEL, "--target", "pdp-11") == fails("compile", MODEL, "--target", "pdp-11")
    assert "already compiled" in fails("inspect", compiled, "--target", "rpi4")


def test_inspect_for_a_target_says_why_it_is_slow(cli, tmp_path):
    onnx = pytest.importorskip("onnx")
    tensor, uint8, int64 = onnx.helper.make_tensor_value_info, onnx.TensorProto.UINT8, onnx.TensorProto.INT64
    nodes = [
        onnx.helper.make_node("ConvInteger", ["x", "w"], ["sums"]),
        onnx.helper.make_node("TopK", ["sums", "k"], ["y", "places"]),
    ]
    inputs = [tensor("x", uint8, [1, 2, 8, 8]), tensor("w", uint8, [3, 2, 3, 3])]
    outputs = [tensor("y", onnx.TensorProto.INT32, [1, 3, 6, 2]), tensor("places", int64, [1, 3, 6, 2])]
    k = onnx.helper.make_tensor("k", int64, [1], [2])
    path = tmp_path / "top.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "top", inputs, outputs, [k])), path)
    code, out, _ = cli("inspect", path, "--target", "x86-64")
    text = " ".join(out.split())
    assert code == 0 and "conv2d_nhwc.generic: 'sums_part': its weights are only known at run time" in text
    (variant,) = json.loads(cli("inspect", path, "--target", "x86-64", "--json")[1])["variants"]
    assert any("its weights are only known" in item["reason"] for item in variant["kernels"])


def test_several_targets_in_one_file(cli, tmp_path):
    output = tmp_path / "several.qnn"
    code, out, _ = cli("compile", MODEL, "-o", output, "--target", "x86-64, avx2", "--json")
    assert code == 0 and [target["mcpu"] for target in json.loads(out)["targets"]] == ["haswell", "x86-64"]
    code, out, _ = cli("inspect", output, "--json")
    variants = json.loads(out)["variants"]
    assert code == 0 and [variant["target"]["mcpu"] for variant in variants] == ["haswell", "x86-64"]
    assert variants[1]["runs_here"] == (host_architecture() == "x86_64")
    code, out, _ = cli("inspect", output)
    assert code == 0 and "haswell, x86-64" in out and "kernels for" in out


def test_help_shows_examples(cli):
    for command in ([], ["compile"], ["run"], ["bench"], ["inspect"]):
        code, out, _ = cli(*command, "--help")
        assert code == 0 and "Examples:" in out
    assert cli("--version")[1] == f"qnn-ext, version {qnn_ext.__version__}\n"


def test_photos(cli, models, tmp_path):
    """A real classifier names what real photos show."""
    network, images = tmp_path / "mobilenet.qnn", models / "images"
    assert cli("compile", models / "tflite" / "mobilenet_v2_1.0_224_quant.tflite", "-o", network)[0] == 0
    photos = {"hot_dog.jpg": "hotdog", "parrot.jpg": "macaw", "grace_hopper.bmp": "military uniform", "cat.bmp": "cat"}
    for photo, expected in photos.items():
        labels = images / "imagenet_labels.txt"
        code, out, _ = cli("run", network, "--input", images / photo, "--labels", labels, "--top", "1", "--json")
        top = json.loads(out)["results"][0]["outputs"][0]["top"][0]
        assert code == 0 and expected in top["label"] and top["value"] > 0.5


# ---- mistakes ----------------------------------------------------------------------------------------------------


def test_wrong_usage_exits_with_2(cli, compiled):
    for args in (
        ["nonsense"],
        ["run", compiled],
        ["compile", MODEL, "--batch", "0"],
        ["compile", MODEL, "--shape", "x"],
        ["compile", MODEL, "--constant", "x"],
        ["compile", MODEL, "--constant", "x=big"],
        ["compile", MODEL, "--state", "x"],
        ["compile", MODEL, "--largest", "x"],
        ["compile", MODEL, "--largest", "x=-1"],
    ):
        code, out, err = cli(*args)
        assert code == 2 and out == "" and "Traceback" not in err


NO_MODELS = [
    (None, "no such file"),
    (b"", "the file is empty"),
    (b"PK\x03\x04 not a zip", "neither a .qnn file"),
    (b"hello world, no model", "no known format"),
    (b"\x08\x07", "no known format"),  # an ONNX version and nothing else
    (b'{"nodes": []}', "not an MXNet symbol"),
    (b'{"nodes": [', "not an MXNet symbol"),
    (b"[" * 100_000, "no known format"),
    (b'{"nodes":' + b"[" * 100_000, "not an MXNet symbol"),
    (b"\x12\x01" + bytes(30), "-symbol.json"),
    (b"\x80\x02}q\x00.", "pickle"),
]


@pytest.mark.parametrize(("content", "message"), NO_MODELS)
@pytest.mark.parametrize("command", ["compile", "bench", "inspect", "run"])
def test_unusable_model(fails, tmp_path, command, content, message):
    path = tmp_path / "m.tflite"
    if content is not None:
        path.write_bytes(content)
    extra = ["--input", DIGIT] if command == "run" else ["-o", tmp_path / "out.qnn"] if command == "compile" else []
    error = fails(command, path, *extra)
    assert message in error
    if content is not None:
        assert all(title in error for title in TITLES.values())
    assert not (tmp_path / "out.qnn").exists()


def test_weights_of_torch_save_are_no_model(fails, tmp_path):
    with zipfile.ZipFile(tmp_path / "weights.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    assert "weights saved by torch.save" in fails("inspect", tmp_path / "weights.pt")


def test_a_folder_is_no_model(fails, tmp_path):
    assert "directory" in fails("inspect", tmp_path)


def test_options_of_other_formats(fails, compiled):
    assert "--sum-mode is for MXNet" in fails("inspect", MODEL, "--sum-mode", "mxnet")
    assert "--params is for MXNet" in fails("bench", DATA / "digits_cnn_qdq.onnx", "--params", MODEL)
    assert "--numerics is for TFLite" in fails("run", DATA / "digits_cnn_qdq.onnx", "--numerics", "tflite", "-i", DIGIT)
    assert "fixed" in fails("inspect", compiled, "--batch", "2")
    assert "already compiled" in fails("compile", compiled)


@pytest.mark.parametrize(("package", "file"), [("onnx", "digits_cnn_qdq.onnx"), ("torch", "digits_cnn_pt2e_x86.pt2")])
def test_missing_framework(fails, monkeypatch, package, file):
    monkeypatch.setitem(sys.modules, package, None)  # what an import of a missing package finds
    assert f"pip install 'qnn-ext[{package}]'" in fails("inspect", DATA / file)


def test_params_of_a_symbol(fails, tmp_path):
    """Beside the symbol lies exactly one .params file, or --params names one."""
    symbol = tmp_path / "net[1]-symbol.json"
    symbol.write_text('{"nodes": [], "heads": []}')
    assert "net[1]-0000.params" in fails("inspect", symbol)
    for epoch in ("0000", "0010"):
        (tmp_path / f"net[1]-{epoch}.params").write_bytes(b"damaged")
    assert "net[1]-0000.params, net[1]-0010.params" in fails("inspect", symbol)
    (tmp_path / "net[1]-0010.params").unlink()
    assert find_params(symbol) == tmp_path / "net[1]-0000.params"


def test_truncated_model(fails, tmp_path):
    (tmp_path / "m.tflite").write_bytes(MODEL.read_bytes()[:5000])
    fails("compile", tmp_path / "m.tflite", "-o", tmp_path / "out.qnn")
    assert not (tmp_path / "out.qnn").exists()


@pytest.mark.parametrize("output", ["missing/out.qnn", "."])
def test_unwritable_output(fails, tmp_path, output):
    assert "cannot write" in fails("compile", MODEL, "-o", tmp_path / output)
    assert list(tmp_path.iterdir()) == []


def test_unknown_target(fails, tmp_path):
    assert "skylake" in fails("compile", MODEL, "--target", "skylake-avx9000", "-o", tmp_path / "m.qnn")


def test_unknown_shape_name(fails, tmp_path):
    assert "nope" in fails("compile", MODEL, "--shape", "nope=1,8,8,1", "-o", tmp_path / "m.qnn")
    assert "nope" in fails("compile", MODEL, "--constant", "nope=16000", "-o", tmp_path / "m.qnn")
    assert "nope" in fails("compile", MODEL, "--state", "nope=other", "-o", tmp_path / "m.qnn")
    assert "--largest is for ONNX" in fails("compile", MODEL, "--largest", "nope=9", "-o", tmp_path / "m.qnn")


def test_shapes_of_a_compiled_file_are_fixed(fails, compiled):
    assert "fixed" in fails("run", compiled, "--input", DIGIT, "--batch", "2")


def test_the_target_of_a_compiled_file_is_fixed(fails, compiled):
    assert "already compiled" in fails("bench", compiled, "--target", "nonsense")


def test_unusable_inputs(fails, compiled, tmp_path):
    np.save(tmp_path / "shape.npy", np.zeros((1, 9, 8, 1), np.int8))
    np.save(tmp_path / "dtype.npy", np.zeros((1, 8, 8, 1), np.int64))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "names.npz", x=np.zeros(1), y=np.zeros(1))
    np.savez(tmp_path / "wrong.npz", image=np.zeros((1, 8, 8, 1), np.int8))
    np.save(tmp_path / "nan.npy", np.full((1, 8, 8, 1), np.nan))
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "text.jpg").write_text("no image")
    (tmp_path / "cut.png").write_bytes(DIGIT.read_bytes()[:100])
    expected = {
        "shape.npy": "(1, 8, 8, 1)",
        "dtype.npy": "must be int8",
        "objects.npy": "not a .npy file",
        "names.npz": "unknown input 'x'",
        "wrong.npz": "unknown input 'image'",
        "nan.npy": "contain NaN",
        "x=y.npy": "there is no input",
        "text.npy": "not a .npy file",
        "text.npz": "not a .npz file",
        "text.jpg": "neither an image",
        "cut.png": "cannot be read as an image",
        "missing.npy": "no such file",
        "missing.npz": "no such file",
        "missing.jpg": "no such file",
    }
    for name, message in expected.items():
        assert message in fails("run", compiled, "--input", tmp_path / name), name


def test_unusable_labels(fails, compiled, tmp_path):
    (tmp_path / "nine.txt").write_text("\n".join("123456789"))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00\x81")
    assert "9 lines, the model 10 classes" in fails("run", compiled, "-i", DIGIT, "--labels", tmp_path / "nine.txt")
    assert "UTF-8" in fails("run", compiled, "-i", DIGIT, "--labels", tmp_path / "binary.txt")
    assert "no such file" in fails("run", compiled, "-i", DIGIT, "--labels", tmp_path / "missing.txt")


def test_nothing_valuable_is_replaced(fails, compiled, tmp_path):
    """Checked before the work: a model must not be lost to a slip in -o."""
    model, text, float_data = tmp_path / "m.tflite", tmp_path / "notes.txt", tmp_path / "x.npy"
    shutil.copy(MODEL, model)
    text.write_text("important")
    np.save(float_data, np.zeros((1, 8, 8, 1), np.float32))
    before = {path: path.read_bytes() for path in (model, text, float_data)}
    cases = {
        ("compile", model, "-o", model): "is an input of this command",
        ("compile", model, "-o", text): "is not a compiled model",
        ("compile", model, "-o", "-", "--json"): "both write to the standard output",
        ("tune", model, "--log", "-"): "not to the standard output",
        ("compile", model, "-o", tmp_path): "is a directory",
        ("quantize", model, "--dynamic", "-o", model): "is an input of this command",
        ("quantize", model, "--data", float_data, "--table", float_data): "is an input of this command",
        ("run", compiled, "-i", float_data, "--output", float_data): "is an input of this command",
        ("tune", model, "--log", model): "is an input of this command",
    }
    for command, message in cases.items():
        assert message in fails(*command), command
    assert {path: path.read_bytes() for path in before} == before


def test_a_compiled_file_is_replaced(cli, compiled, tmp_path):
    output = tmp_path / "m.qnn"
    shutil.copy(compiled, output)
    assert cli("compile", MODEL, "-o", output, "--target", "x86-64", "--threads", "1")[0] == 0
    assert qnn_ext.load(output).target["mcpu"] == "x86-64"


def test_unusable_output_of_run(fails, compiled, tmp_path):
    assert ".npy or .npz" in fails("run", compiled, "-i", DIGIT, "--output", tmp_path / "y.txt")
    assert "one run" in fails("run", compiled, "-i", DIGIT, "-i", DIGIT, "--output", tmp_path / "y.npy")
    assert "no folder" in fails("run", compiled, "-i", DIGIT, "--output", tmp_path / "missing" / "y.npy")
    assert list(tmp_path.iterdir()) == []


def test_int16_input_asks_how_to_normalize(fails, cli):
    model = DATA / "digits_cnn_int16x8.tflite"
    assert "choose one of 0..1" in fails("run", model, "-i", DIGIT, "--threads", "1")
    code, out, _ = cli("run", model, "-i", DIGIT, "--normalize", "0..1", "--json", "--threads", "1")
    assert code == 0 and json.loads(out)["results"][0]["outputs"][0]["top"][0]["index"] == 3


def test_interrupt_exits_with_130(cli, compiled, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(qnn_ext.Engine, "time", interrupted)
    assert cli("bench", compiled)[0] == 130


def test_closed_pipe_is_silent(compiled):
    """`qnn-ext inspect m.qnn | head -1`."""
    command = f"{sys.executable} -c 'from qnn_ext.cli import main; main()' inspect {compiled} --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout == "{\n" and done.stderr == ""


def test_colour_picture_for_a_grey_input(cli, compiled, tmp_path):
    Image.open(DIGIT).convert("RGBA").save(tmp_path / "colour.png")
    _, grey, _ = cli("run", compiled, "--input", DIGIT, "--json")
    _, colour, _ = cli("run", compiled, "--input", tmp_path / "colour.png", "--json")
    assert json.loads(grey)["results"][0]["outputs"] == json.loads(colour)["results"][0]["outputs"]


def test_an_arm_board_is_compiled_for_and_not_run_here(cli, fails, links_for, tmp_path):
    links_for("aarch64")
    output = tmp_path / "m.qnn"
    code, out, _ = cli("compile", UINT8, "--target", "rpi4", "-o", output)
    assert code == 0 and re.search(r"cortex-a72: weights [\d.]+ kB, feature maps [\d.]+ kB", out)
    assert "built for aarch64, but this machine is" in fails("run", output, "--input", DIGIT)
    code, out, _ = cli("inspect", output)
    assert code == 0 and "cortex-a72: does not run here; weights" in out


def test_memory_per_target(cli, links_for, tmp_path):
    links_for("aarch64")
    output = tmp_path / "m.qnn"
    code, out, _ = cli("compile", UINT8, "--target", "rpi4,rpi5,x86-64", "-o", output, "--json")
    memory = json.loads(out)["memory"]
    assert code == 0 and [one["target"] for one in memory] == ["cortex-a76", "cortex-a72", "x86-64"]
    assert all(0 < one["feature_maps"] < one["weights"] for one in memory)
    variants = json.loads(cli("inspect", output, "--json")[1])["variants"]
    assert [variant["memory"]["weights"] for variant in variants] == [one["weights"] for one in memory]


@pytest.mark.parametrize("arguments", [["run", "-i", DIGIT], ["bench"], ["inspect"]], ids=["run", "bench", "inspect"])
def test_a_compiled_file_runs_without_the_compiler(compiled, arguments):
    """What a board with little memory does; TVM's compiler takes 150 MB and seconds to import."""
    command, *rest = map(str, arguments)
    script = f"""
import sys
from qnn_ext.cli import main
try:
    main({[command, str(compiled), *rest]!r})
except SystemExit as end:
    assert not end.code and "qnn_ext.compiling" not in sys.modules and "tvm" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout, done.stderr
