"""Engine and `.qnn` files: inputs are checked, files are whole or not there, states are kept, threads do not matter."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import qnn_ext
from qnn_ext import ArtifactError, InputError, QnnError, TargetError
from qnn_ext.processes.cores import default_threads
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.host import can_run
from tests.cases.loops import as_model
from tests.passes.modules import module as module_over
from tests.passes.modules import products_so_far
from tests.qnn_files import describe, description_of, rewrite, rezip, zip_members
from tests.threads import at_once

DATA = Path(qnn_ext.__file__).parent / "data"
x86_only = pytest.mark.skipif(host_architecture() != "x86_64", reason="this machine is no x86")
ZEROS = np.zeros((1, 8, 8, 1), np.int8)


@pytest.fixture(scope="module")
def module() -> qnn_ext.QnnModule:
    return qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")


@pytest.fixture(scope="module")
def engine(module) -> qnn_ext.Engine:
    return qnn_ext.build(module, num_threads=1)


@pytest.fixture(scope="module")
def saved(engine, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "digits.qnn"
    engine.save(path)
    return path


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Held-out digits as int8 inputs, one batch of 1 each."""
    with np.load(DATA / "digits_test.npz") as stored:
        return np.rint(stored["x"][:, None, :, :, None] / 16 * 255 - 128).astype(np.int8)


# ---- inputs ------------------------------------------------------------------------------------------------------


def test_the_only_input_may_be_given_as_it_is(engine, images):
    torch = pytest.importorskip("torch")
    expected = engine(images[0])
    for given in (images[0], torch.from_numpy(images[0].copy())):
        (found,) = engine.run(given).values()
        np.testing.assert_array_equal(found, expected)
        (found,) = engine.submit(given).result().values()
        np.testing.assert_array_equal(found, expected)
    (found,) = engine.run(images[0].astype(np.float32), quantize=True).values()
    assert found.shape == expected.shape


def test_wrong_inputs_name_the_input(engine):
    name = engine.inputs[0].name
    with pytest.raises(InputError, match="unknown input 'nope'"):
        engine.run({"nope": ZEROS})
    with pytest.raises(InputError, match="is missing"):
        engine.run({})
    with pytest.raises(InputError, match="takes 1 inputs"):
        engine(ZEROS, ZEROS)
    with pytest.raises(InputError, match="takes 1 inputs"):
        engine()
    with pytest.raises(InputError, match=rf"'{name}' must have shape \(1, 8, 8, 1\), found \(8, 8, 1\)"):
        engine(ZEROS[0])
    with pytest.raises(InputError, match=r"must be int8, found float32; quantize it with int8\[scale"):
        engine(ZEROS.astype(np.float32))
    with pytest.raises(InputError, match="must be int8, found uint8"):
        engine(ZEROS.astype(np.uint8))
    with pytest.raises(InputError):
        engine(None)


def test_real_values_in_and_out(engine, rng):
    """quantize=True: the integers that the input's scale and zero point give; dequantize=True: the real outputs.
    Integers, and outputs without a scale, stay as they are."""
    name, qparams = engine.inputs[0].name, engine.inputs[0].qparams
    real = rng.random((1, 8, 8, 1), np.float32)
    integers = np.clip(np.rint(real / np.float32(qparams.scale)) + qparams.zero_point, -128, 127).astype(np.int8)
    (expected,) = engine.run([integers]).values()
    for given in (real, real.astype(np.float64), integers):
        (found,) = engine.run({name: given}, quantize=True).values()
        assert found.dtype == np.int8
        np.testing.assert_array_equal(found, expected)
    out = engine.outputs[0].qparams
    (found,) = engine.run([integers], dequantize=True).values()
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, (expected.astype(np.int32) - out.zero_point) * np.float32(out.scale))
    with pytest.raises(InputError, match="contain NaN"):
        engine.run([np.full((1, 8, 8, 1), np.nan)], quantize=True)
    with pytest.raises(InputError, match=r"must have shape \(1, 8, 8, 1\)"):
        engine.run([real[0]], quantize=True)
    with pytest.raises(InputError, match="must be int8, found uint8"):
        engine.run([integers.astype(np.uint8)], quantize=True)
    with pytest.raises(InputError, match="without a stream"):
        engine.run([real], stream=1, quantize=True)


def test_what_is_no_array(engine):
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"Tensor is no array: .*detach"):
        engine(torch.zeros(1, 8, 8, 1, requires_grad=True))
    with pytest.raises(InputError, match="list is no array"):
        engine([[1], [1, 2]])


def test_what_is_no_path():
    with pytest.raises(ArtifactError, match="path of its file, found bytes"):
        qnn_ext.load(b"PK")


def test_a_module_is_shown_in_one_line(module):
    text = repr(module)
    assert "digits_cnn_int8.tflite" in text and "1×8×8×1 int8[scale" in text
    assert len(text) < 400 and "\n" not in text


@pytest.mark.parametrize("target", [{"kind": "opencl"}, 5, None])
def test_what_is_no_target(module, target):
    with pytest.raises(TargetError, match=r"no kernels for target kind|a target is a name"):
        qnn_ext.build(module, target=target)
    if target == {"kind": "opencl"}:
        with pytest.raises(TargetError, match="no kernels for target kind 'opencl'"):
            qnn_ext.build(module, target=tvm.target.Target(target))


def test_inputs_of_any_memory_layout(engine, images):
    image = images[7]
    expected = engine(image)
    turned = np.asfortranarray(image.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(engine(turned), expected)
    np.testing.assert_array_equal(engine(np.concatenate([image, image], axis=3)[..., ::2]), expected)


def test_outputs_belong_to_the_caller(engine, images):
    first = engine(images[0])
    kept = first.copy()
    engine(images[1])
    np.testing.assert_array_equal(first, kept)
    first[...] = 0
    np.testing.assert_array_equal(engine(images[0]), kept)


def test_call_and_run_agree(engine, images):
    by_name = engine.run({engine.inputs[0].name: images[0]})
    assert list(by_name) == [spec.name for spec in engine.outputs]
    np.testing.assert_array_equal(by_name[engine.outputs[0].name], engine(images[0]))


# ---- results -----------------------------------------------------------------------------------------------------


def test_equals_the_interpreter(module, engine, images):
    oracle = qnn_ext.Interpreter(module)
    for image in images[:10]:
        np.testing.assert_array_equal(engine(image), oracle(image))


@pytest.mark.parametrize("target", ["native", "x86-64", "haswell"])
def test_targets_and_threads_change_nothing(module, engine, images, target):
    try:
        other = qnn_ext.build(module, target, num_threads=2)
        other(images[0])
    except TargetError as error:
        pytest.skip(str(error))
    for image in images[:10]:
        np.testing.assert_array_equal(other(image), engine(image))


def test_batch(images):
    shapes = {"serving_default_image:0": (4, 8, 8, 1)}
    module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite", shapes=shapes)
    batched = qnn_ext.build(module, num_threads=1)
    single = qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite"), num_threads=1)
    expected = np.concatenate([single(image) for image in images[:4]])
    np.testing.assert_array_equal(batched(np.concatenate(images[:4])), expected)


def test_engines_in_python_threads(saved, images):
    """An engine per thread: they share TVM's thread pool, not their buffers."""
    expected = [qnn_ext.load(saved, num_threads=1)(image) for image in images[:20]]

    def work(_: int) -> list[np.ndarray]:
        own = qnn_ext.load(saved, num_threads=1)
        return [own(image) for image in images[:20]]

    for found in at_once(work, range(4)):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="affinity is a Linux thing")
def test_running_leaves_the_cores_of_this_process_alone(saved):
    script = (
        "import os; before = os.sched_getaffinity(0); import numpy as np, qnn_ext; "
        f"qnn_ext.load({str(saved)!r}, num_threads=1)(np.zeros((1, 8, 8, 1), np.int8)); "
        "assert os.sched_getaffinity(0) == before"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_loading_needs_no_frontend(saved):
    """Neither the schema package nor flatbuffers: a `.qnn` file runs where only the core is installed."""
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['tflite', 'flatbuffers', 'ai_edge_litert'])); "
        "import numpy as np, qnn_ext; "
        f"assert qnn_ext.load({str(saved)!r}, num_threads=1)(np.zeros((1, 8, 8, 1), np.int8)).shape == (1, 10)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# ---- states ------------------------------------------------------------------------------------------------------


def test_states_are_kept_saved_and_reset(tmp_path, rng):
    module = qnn_ext.from_tflite(DATA / "digits_lstm_int8.tflite")
    assert module.states
    engine = qnn_ext.build(module, num_threads=1)
    spec = engine.inputs[0]
    data = rng.integers(-128, 128, spec.shape, dtype=np.int8)
    first, second = engine(data), engine(data)
    assert not np.array_equal(first, second)
    oracle = qnn_ext.Interpreter(module)
    np.testing.assert_array_equal(oracle(data), first)
    np.testing.assert_array_equal(oracle(data), second)
    engine.time(number=1, repeat=1)
    engine.profile(repeat=1)
    third = engine(data)
    np.testing.assert_array_equal(oracle(data), third)  # measuring leaves the state alone
    engine.save(tmp_path / "lstm.qnn")
    loaded = qnn_ext.load(tmp_path / "lstm.qnn")  # starts from the initial state
    np.testing.assert_array_equal(loaded(data), first)
    np.testing.assert_array_equal(loaded(data), second)
    loaded.reset_state()
    np.testing.assert_array_equal(loaded(data), first)


# ---- measuring ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [3, None, "x", iter([1])], ids=["number", "None", "text", "iterator"])
def test_inputs_that_are_none(engine, inputs):
    with pytest.raises(InputError, match="inputs must be arrays in a list or by name, found"):
        engine.run(inputs)


def test_measuring_takes_what_run_takes(engine):
    """Inputs by name, in order or as they are; whatever else is an InputError."""
    given = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in engine.inputs}
    for inputs in (given, list(given.values()), next(iter(given.values()))):
        assert len(engine.profile(1, inputs)) == len(engine.profile(1))
        assert engine.time(1, 1, inputs).seconds
    for use in (engine.profile, engine.spans, engine.time):
        for count in (next(iter(given.values())), 0, -1, 1.5, "2", True, None):
            with pytest.raises(InputError, match="must be a whole number of at least 1"):
                use(count)
        for inputs in (3, "x", [], {}, iter([1])):
            with pytest.raises(InputError):
                use(1, inputs=inputs)


def test_time_and_profile(engine):
    timing = engine.time(number=2, repeat=5)
    assert len(timing.seconds) == 5 and 0 < timing.best <= timing.median
    layers = engine.profile(repeat=3)
    assert [layer.kernel for layer in layers] == engine.kernels
    assert all(layer.seconds > 0 and layer.bytes > 0 for layer in layers)
    macs = {layer.kernel.macs for layer in layers}
    assert 8 * 8 * 16 * 9 in macs  # the first convolution: 8×8 pixels, 16 channels, 3×3 taps
    assert all((layer.gops > 0) == (layer.kernel.macs > 0) for layer in layers)
    with pytest.raises(InputError):
        engine.time(inputs=[np.zeros(3)])


def test_source(engine, saved):
    assert "T.prim_func" in engine.source("tir")
    assert "define" in engine.source("ll")
    assert ".text" in engine.source("asm")
    with pytest.raises(QnnError, match="tir, ll or asm"):
        engine.source("c")
    with pytest.raises(QnnError, match="holds no source"):
        qnn_ext.load(saved).source()


# ---- save and load -----------------------------------------------------------------------------------------------


def test_round_trip(engine, saved, images):
    loaded = qnn_ext.load(saved)
    assert (loaded.inputs, loaded.outputs, loaded.notes) == (engine.inputs, engine.outputs, engine.notes)
    assert (loaded.kernels, loaded.target, loaded.features) == (engine.kernels, engine.target, engine.features)
    for image in images[:10]:
        np.testing.assert_array_equal(loaded(image), engine(image))
    with pytest.raises(ArtifactError, match="copy the file"):
        loaded.save(saved.with_name("again.qnn"))


def test_load_needs_no_frontend(saved):
    """A process in which the schema package cannot be imported."""
    script = (
        "import sys; sys.modules['tflite'] = None; import numpy as np, qnn_ext; "
        f"print(qnn_ext.load({str(saved)!r})(np.zeros((1, 8, 8, 1), np.int8)).shape)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "(1, 10)\n", done.stderr


def test_save_replaces_a_file(engine, tmp_path, images):
    path = tmp_path / "m.qnn"
    path.write_text("old")
    engine.save(path)
    np.testing.assert_array_equal(qnn_ext.load(path)(images[0]), engine(images[0]))
    assert [item.name for item in tmp_path.iterdir()] == ["m.qnn"]


def test_save_where_nothing_can_be_written(engine, tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "missing" / "m.qnn", tmp_path / "file" / "m.qnn", "/proc/m.qnn"):
        with pytest.raises(ArtifactError, match="cannot write"):
            engine.save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_save_leaves_devices_and_protected_files_alone(engine, tmp_path):
    fifo, protected = tmp_path / "fifo", tmp_path / "protected.qnn"
    os.mkfifo(fifo)
    protected.write_text("keep me")
    protected.chmod(0o444)
    with pytest.raises(ArtifactError, match="cannot write"):
        engine.save(fifo)
    assert fifo.is_fifo()
    if not os.access(protected, os.W_OK):  # root may write anything
        with pytest.raises(ArtifactError, match="cannot write"):
            engine.save(protected)
        assert protected.read_text() == "keep me"


def test_save_without_a_compiler_leaves_nothing(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "nothing"))
    with pytest.raises(ArtifactError, match=r"C compiler.*No such file"):
        engine.save(tmp_path / "m.qnn")
    assert list(tmp_path.iterdir()) == []


def test_an_error_before_linking_is_not_taken_for_a_missing_compiler(engine, tmp_path, monkeypatch):
    """A build that finds no linker runs its code from memory, which would hide an error of the compiler."""

    def fails(path, **kwargs):
        raise RuntimeError("ours")

    monkeypatch.setattr(engine._built.executable, "export_library", fails)
    with pytest.raises(RuntimeError, match="ours"):
        engine.save(tmp_path / "m.qnn")
    assert list(tmp_path.iterdir()) == []


def test_library_that_is_none(saved, tmp_path):
    rewrite(saved, tmp_path / "m.qnn", {"model0.so": b"\x7fELF no library"})
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        qnn_ext.load(tmp_path / "m.qnn")


def test_cpu_without_the_instructions(saved, tmp_path):
    description = description_of(saved)
    description["variants"][0]["features"].append("amx-int8")
    describe(saved, tmp_path / "m.qnn", description)
    with pytest.raises(TargetError, match="amx-int8, which this CPU lacks"):
        qnn_ext.load(tmp_path / "m.qnn")
    description["variants"][0].update(architecture="aarch64", features=[])
    describe(saved, tmp_path / "m.qnn", description)
    with pytest.raises(TargetError, match="built for aarch64"):
        qnn_ext.load(tmp_path / "m.qnn")


def _part_with(description: dict, key: str) -> dict:
    """The part of a description that holds a key."""
    return description if key in description else description["variants"][0]


@pytest.mark.skipif(default_threads() < 2, reason="one core only")
def test_threads_of_the_pool_are_those_asked_for():
    """TVM alone would take one thread on two cores, as it counts every second core as a hyper-thread."""
    script = (
        "from qnn_ext.running.threads import use_tvm_threads; from qnn_ext.tvm_runtime import get_function\n"
        "for threads in (2, 1, 2): use_tvm_threads(threads); print(get_function('runtime.NumThreads')())"
    )
    limits = ("OMP_NUM_THREADS", "TVM_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in limits}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "1", "2"]


# ---- several targets in one file ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def several(module, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("several") / "several.qnn"
    qnn_ext.build(module, ["x86-64", "avx512_vnni", "avx2"], num_threads=1).save(path)
    return path


@x86_only
def test_variants_are_sorted_and_the_fastest_is_taken(several, engine, images):
    loaded = qnn_ext.load(several, num_threads=1)
    assert [target["mcpu"] for target in loaded.variants] == ["cascadelake", "haswell", "x86-64"]
    runnable = [
        v["target"]["mcpu"] for v in description_of(several)["variants"] if can_run(v["features"], v["architecture"])
    ]
    assert loaded.target["mcpu"] == runnable[0]
    np.testing.assert_array_equal(loaded(images[0]), engine(images[0]))


@x86_only
def test_every_variant_gives_the_same(several, engine, images, tmp_path):
    """On a CPU that lacks what the first variants need, the next one is loaded."""
    description = description_of(several)
    for index, variant in enumerate(description["variants"]):
        describe(several, tmp_path / "m.qnn", description)
        if can_run(variant["features"], variant["architecture"]):
            loaded = qnn_ext.load(tmp_path / "m.qnn", num_threads=1)
            assert loaded.target == loaded.variants[index]
            for image in images[:5]:
                np.testing.assert_array_equal(loaded(image), engine(image))
        variant["features"] = ["amx-int8"]
    describe(several, tmp_path / "m.qnn", description)
    with pytest.raises(TargetError, match=r"none of the targets in the file \(cascadelake, haswell, x86-64\)"):
        qnn_ext.load(tmp_path / "m.qnn")


@x86_only
def test_only_the_library_of_this_cpu_is_unpacked(several, tmp_path, images):
    taken = qnn_ext.load(several).variants.index(qnn_ext.load(several).target)
    names = [
        name.format(index) for name in ("model{}.so.xz", "weights{}.bin.xz") for index in range(3) if index != taken
    ]
    broken = {name: bytes(len(content)) for name, content in zip_members(several).items() if name in names}
    assert len(broken) == 4
    rezip(several, tmp_path / "m.qnn", broken)
    qnn_ext.load(tmp_path / "m.qnn")(images[0])


def test_repeated_layers_share_their_code(rng):
    """Ten layers with weights of their own are ten calls of one function."""
    names = [f"x{number}" for number in range(21)]
    nodes, weights = [], []
    for number in range(10):
        x, y, z = names[2 * number : 2 * number + 3]
        weights.append(numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32), f"w{number}"))
        nodes += [helper.make_node("MatMul", [x, f"w{number}"], [y]), helper.make_node("Relu", [y], [z])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    module = qnn_ext.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    engine = qnn_ext.build(module, num_threads=1)
    functions = [line for line in engine.source("ll").splitlines() if line.startswith("define")]
    assert len(engine.kernels) >= 10 and len(functions) < len(engine.kernels)


def test_building_for_no_target(module):
    with pytest.raises(TargetError, match="at least one"):
        qnn_ext.build(module, [])


# ---- without the compiler ----------------------------------------------------------------------------------------


def test_a_loaded_model_needs_no_compiler(saved):
    """Neither TVM's Python package nor PyTorch, OpenSSL or importlib.metadata are imported; all can be,
    afterwards."""
    script = (
        "import sys, numpy as np, qnn_ext; "
        f"engine = qnn_ext.load({str(saved)!r}, num_threads=2); image = np.zeros((1, 8, 8, 1), np.int8); "
        "first = engine(image); engine.time(number=1, repeat=1); engine.profile(repeat=1); "
        "assert not {'tvm', 'torch', '_hashlib', 'hashlib', 'importlib.metadata'} & set(sys.modules); "
        "import hashlib, _hashlib; assert hashlib.sha256 is _hashlib.openssl_sha256; "
        "import tvm_ffi, ml_dtypes; assert tvm_ffi.convert(lambda x: x)(np.dtype(ml_dtypes.bfloat16)) == 'bfloat16'; "
        "assert tvm_ffi.libinfo.im.distribution('numpy').version == np.__version__; "
        f"built = qnn_ext.build(qnn_ext.from_tflite({str(DATA / 'digits_cnn_int8.tflite')!r})); "
        "assert (built(image) == first).all() and (engine(image) == first).all()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_loaded_model_of_the_virtual_machine_needs_no_compiler(tmp_path):
    """It calls functions beyond the runtime's own."""
    mod = module_over([((4, 6), "int32")], lambda emit, x: emit(products_so_far(x)))
    engine = qnn_ext.build(as_model(mod), num_threads=1)
    assert engine._variant.program is None
    engine.save(tmp_path / "products.qnn")
    script = (
        "import sys, numpy as np, qnn_ext; x = np.random.default_rng(0).integers(-5, 6, (4, 6)).astype(np.int32); "
        f"products = qnn_ext.load({str(tmp_path / 'products.qnn')!r})(x); assert 'tvm' not in sys.modules; "
        "assert (products == np.cumprod(x, -1)).all(); import tvm"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_build_leaves_no_garbage(module):
    """Reference cycles would keep weights alive until Python's garbage collector runs."""
    qnn_ext.build(module, num_threads=1)  # what is made once
    gc.collect()
    gc.disable()
    try:
        engine = qnn_ext.build(module, num_threads=1)
        assert gc.collect() == 0
        del engine
        assert gc.collect() == 0
    finally:
        gc.enable()
