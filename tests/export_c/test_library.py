"""What a C library promises besides its results: no runtime, one workspace, statuses, threads, wrappers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import ArtifactError, Interpreter, QnnError, TargetError, op
from qnn_ext.compiling.program import plain
from qnn_ext.export_c.interface import c_float, c_string, fields_of, identifier
from qnn_ext.interpreter import interpret
from qnn_ext.module import State
from qnn_ext.op.base import constant
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.elf import Object
from tests.arm.test_models import digits
from tests.cases.bundled import module_of
from tests.cases.loops import as_model, assembled
from tests.compiling.program.small import small_module
from tests.compiling.program.test_in_place import BODIES, ROWS
from tests.compiling.program.test_in_place import module as cache_module
from tests.compiling.program.test_loops import case as loop_case
from tests.compiling.program.test_loops import values
from tests.export_c.libraries import Harness, checked, compiler, emulated, run
from tests.passes.modules import products_so_far
from tests.passes.test_attention import group_query

pytestmark = pytest.mark.skipif(host_architecture() != "x86_64", reason="the libraries are for x86-64")
FILE = "digits_cnn_int8.tflite"


def test_nothing_but_memory_functions_is_needed(every_level):
    for one in every_level.library.compiled:
        assert set(one.object.undefined) <= {"memcpy", "memset", "truncf"}  # truncf: SSE2 has no instruction for it
        assert not one.object.has_variables
    names = checked("nm", "--dynamic", "--defined-only", every_level.folder / "libdigits.so").split()[2::3]
    assert {name.removeprefix("digits_") for name in names} == {
        *("workspace_bytes", "init", "run", "input", "output", "target", "status_text")
    }
    objects = [path for path in every_level.folder.glob("*.o") if Object(path.read_bytes()).has_variables]
    assert objects == []


@pytest.mark.parametrize(("cpu", "chosen"), [("Nehalem", "x86-64"), ("Haswell", "haswell"), ("", "")])
def test_cpuid_chooses(every_level, cpu, chosen):
    if cpu:
        emulated("x86_64", cpu)
    (image,) = digits(module_of(FILE), 1)
    harness = Harness(every_level)
    expected = Interpreter(module_of(FILE))(image)
    np.testing.assert_array_equal(harness([[image]], cpu=cpu)[0][0], expected, strict=True)
    assert harness.said.startswith(chosen)


def test_headers_compile_in_both_languages(every_level, tmp_path):
    options = ("-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{every_level.folder}")
    source = tmp_path / "one.c"
    source.write_text('#include "digits.h"\n')
    for standard in ("c99", "c11", "c17"):
        checked(compiler("x86_64"), f"-std={standard}", *options, source)
    checked(compiler("x86_64", "c++"), "-x", "c++", "-std=c++11", *options, source)


STATUSES = """
#include "digits.h"
#include <stdio.h>
static _Alignas(64) unsigned char memory[DIGITS_WORKSPACE_BYTES + 64];
int main(void) {
  digits_inputs inputs = {0};
  digits_outputs outputs = {0};
  printf("%d ", digits_init(0, DIGITS_WORKSPACE_BYTES));
  printf("%d ", digits_init(memory + 1, DIGITS_WORKSPACE_BYTES));
  printf("%d ", digits_init(memory, DIGITS_WORKSPACE_BYTES - 1));
  printf("%d ", digits_run(memory, &inputs, &outputs));
  printf("%d ", digits_run(0, &inputs, &outputs));
  printf("%d ", digits_run(memory + 1, &inputs, &outputs));
  printf("%d ", digits_target(memory) || digits_input(memory, 0) || digits_output(memory, 0));
  printf("%d ", digits_init(memory, sizeof memory));
  printf("%d ", digits_run(memory, 0, &outputs));
  printf("%d ", digits_run(memory, &inputs, 0));
  printf("%d ", digits_input(memory, -1) || digits_input(memory, 1) || digits_output(memory, 1));
  printf("%d", digits_run(memory, &inputs, &outputs));
  for (int status = -7; status < 2; ++status) if (!digits_status_text(status)[0]) return 1;
  return 0;
}
"""


def test_statuses_instead_of_crashes(every_level, tmp_path):
    source, program = tmp_path / "statuses.c", tmp_path / "statuses"
    source.write_text(STATUSES)
    options = ("-std=c11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{every_level.folder}")
    library = every_level.folder / "libdigits.a"
    checked(compiler("x86_64"), *options, source, library, "-lm", "-o", program)
    assert checked(program) == "-1 -2 -3 -4 -1 -2 0 0 -1 -1 0 0"


def test_example_refuses_odd_files(every_level, tmp_path):
    """Files that are missing, too short, too long or folders, and a wrong number of them, under sanitizers."""
    folder = tmp_path / "copy"
    shutil.copytree(every_level.folder, folder)
    checked("make", "-B", "CFLAGS=-O1 -fsanitize=address,undefined", "example", folder=folder)
    for size in (0, 63, 64, 65, 4096):
        (tmp_path / "input.bin").write_bytes(bytes(size))
        done = run(folder / "example", tmp_path / "input.bin", tmp_path / "output.bin")
        assert (done.returncode, done.stderr.endswith("must have 64 bytes\n")) == (int(size != 64), size != 64)
    for inputs in ([tmp_path / "absent"], [tmp_path], [], [tmp_path / "input.bin"] * 2):
        done = run(folder / "example", *inputs, tmp_path / "output.bin")
        assert done.returncode in (1, 2) and "Sanitizer" not in done.stderr
    done = run(folder / "example", tmp_path / "input.bin", tmp_path / "absent" / "output.bin")
    assert done.returncode == 1 and "Sanitizer" not in done.stderr


def test_cmake_builds_it(every_level, tmp_path):
    """On its own, and as a part of somebody's project."""
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    (tmp_path / "main.c").write_text('#include "digits.h"\nint main(void) { return digits_workspace_bytes() == 0; }\n')
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(mine C)\n"
        f"add_subdirectory({every_level.folder} digits)\nadd_executable(mine main.c)\n"
        "target_link_libraries(mine digits)\n"
    )
    for source, program in ((every_level.folder, "example"), (tmp_path, "mine")):
        build = tmp_path / program
        checked("cmake", "-S", source, "-B", build)
        checked("cmake", "--build", build)
        assert (build / program).is_file()
    checked(tmp_path / "mine" / "mine")


def test_python_wrapper_needs_no_tvm(every_level, tmp_path):
    """Two models on two threads of a Python that can import neither TVM nor qnn_ext."""
    images = digits(module_of(FILE), 8)
    np.save(tmp_path / "images.npy", np.stack(images))
    script = f"""
import sys, threading
import numpy as np
sys.modules["tvm"] = sys.modules["qnn_ext"] = None
sys.path.insert(0, {str(every_level.folder)!r})
from digits import INPUTS, OUTPUTS, Model, StatusError
images = np.load({str(tmp_path / "images.npy")!r})
results = [None, None]
def work(place):
    model = Model()
    results[place] = [model(image)[0] for _ in range(20) for image in images]
threads = [threading.Thread(target=work, args=(place,)) for place in (0, 1)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
np.save({str(tmp_path / "results.npy")!r}, np.asarray(results))
try: Model()(images[0].astype(np.float32))
except ValueError as error: print(error)
print(INPUTS[0].shape, OUTPUTS[0].dtype, Model().target != "")
"""
    said = checked(sys.executable, "-c", script)
    assert "must be int8" in said and said.endswith("(1, 8, 8, 1) int8 True\n")
    oracle = Interpreter(module_of(FILE))
    expected = np.stack([oracle(image) for image in images])
    for found in np.load(tmp_path / "results.npy"):
        np.testing.assert_array_equal(found, np.concatenate([expected] * 20), strict=True)


CPP = """
#include "digits.hpp"
#include <cstdio>
#include <thread>
#include <vector>
static void fill(digits::model &model, int seed) {
  int value = seed;
  for (auto &item : model.INPUT()) item = static_cast<std::int8_t>(value = value * 31 % 127);
}
int main() {
  digits::model first, second;
  fill(first, 3), fill(second, 5);
  std::thread other([&] { for (int i = 0; i < 200; ++i) second(); });
  for (int i = 0; i < 200; ++i) first();
  other.join();
  digits::model moved = std::move(first);
  for (auto item : moved.OUTPUT()) std::printf("%d ", item);
  for (auto item : second.OUTPUT()) std::printf("%d ", item);
}
"""


def test_cpp_wrapper_on_two_threads(every_level, tmp_path):
    header = (every_level.folder / "digits.hpp").read_text()
    methods = re.findall(r"> (\w+)\(\)", header)
    source, program = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text(CPP.replace("INPUT", methods[0]).replace("OUTPUT", methods[1]))
    options = ("-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsanitize=thread", f"-I{every_level.folder}", "-pthread")
    library = every_level.folder / "libdigits.a"
    checked(compiler("x86_64", "c++"), *options, source, library, "-lm", "-o", program)
    found = np.asarray(checked(program).split(), np.int8).reshape(2, -1)
    oracle = Interpreter(module_of(FILE))
    for outputs, seed in zip(found, (3, 5), strict=True):
        image, value = [], seed
        for _ in range(64):
            value = value * 31 % 127
            image.append(value)
        np.testing.assert_array_equal(outputs, oracle(np.asarray(image, np.int8).reshape(1, 8, 8, 1)).ravel())


def test_threads_of_the_caller(tmp_path, rng):
    """Parallel parts, in loops too, go to the caller's threads; results do not depend on how many there are."""
    inputs, walk = loop_case("recurrent", 6, 1024)
    mod = assembled(inputs, walk)
    exported = qnn_ext.build(as_model(mod), num_threads=4, code=False).export_c(tmp_path, "wide", threads=4)
    assert exported.library.shared and exported.library.tasks == 4
    given = values(inputs, rng)
    expected = interpret(mod, given)
    harness = Harness(exported, "-fsanitize=thread", threaded=True)
    for threads, launches in ((1, False), (2, True), (7, True)):
        for outputs in harness([given] * 2, threads=threads):
            for found, wanted in zip(outputs, expected, strict=True):
                np.testing.assert_array_equal(found, wanted)
        assert (int(harness.said.split()[-1]) >= 12) == launches


def test_states_may_change_places(tmp_path, rng):
    """One state's new value is where another one's is kept."""

    def walk(builder, params):
        x, first, second = params
        return [relax.op.add(x, first), second, first]

    state = ((4, 5), "int32")
    initial = [State(name, rng.integers(-9, 9, (4, 5)).astype(np.int32)) for name in "ab"]
    module = small_module(walk, [state, state, state], initial)
    engine = qnn_ext.build(module, num_threads=1)
    harness = Harness(engine.export_c(tmp_path, "swap"), "-fsanitize=address,undefined")
    calls = [[rng.integers(-9, 9, (4, 5)).astype(np.int32)] for _ in range(3)]
    for outputs, inputs in zip(harness(calls), calls, strict=True):
        np.testing.assert_array_equal(outputs[0], engine(*inputs), strict=True)


@pytest.mark.parametrize("name", BODIES)
def test_states_in_their_own_memory(name, tmp_path, rng):
    """Rows of a cache are written in place where nothing reads the old values any more, and the cache is not copied."""
    body, in_place = BODIES[name]
    model = cache_module(body)
    exported = qnn_ext.build(model, num_threads=1, code=False).export_c(tmp_path, "cache")
    (compiled,) = exported.library.compiled
    assert ([place.offset for place in compiled.after] == compiled.before) == in_place
    calls = [[rng.integers(-4, 5, ROWS).astype(np.float32), np.array([place])] for place in (0, 5, 2, 2)]
    oracle = Interpreter(model)
    harness = Harness(exported, "-fsanitize=address,undefined")
    for outputs, inputs in zip(harness(calls), calls, strict=True):
        np.testing.assert_array_equal(outputs[0], oracle(*inputs), strict=True)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_a_narrow_cache(dtype, tmp_path, rng):
    """Rows are rounded and written into the cache's own memory, and read as the engine reads them."""
    model = qnn_ext.from_onnx(group_query(1), states={"past.*": "present.*"})
    engine = qnn_ext.build(model, num_threads=1, cache_dtype=dtype)
    harness = Harness(engine.export_c(tmp_path, "cache"), "-fsanitize=address,undefined")
    (spec, _) = model.inputs
    calls = [[rng.normal(size=spec.shape).astype(np.float32), np.array([place], np.int32)] for place in (0, 1, 2, 23)]
    for outputs, inputs in zip(harness(calls), calls, strict=True):
        np.testing.assert_allclose(outputs[0], engine(*inputs), rtol=0, atol=1e-6)


def test_bad_values_are_a_status(tmp_path):
    """The check's number, its text and the value; the next call is as if there had been none."""

    def walk(builder, params):
        indices = builder.emit(op.check_bounds(params[0], -4, 3, 'node "g" (Gather)'))
        return [relax.op.take(constant(np.arange(4, dtype=np.float32)), indices, 0, mode="wrap")]

    module = small_module(walk, [((3,), "int64")])
    exported = qnn_ext.build(module, num_threads=1).export_c(tmp_path, "take", shared=True)
    harness = Harness(exported, "-fsanitize=address,undefined")
    np.testing.assert_array_equal(harness([[np.asarray([-4, 0, 3])]])[0][0], np.float32([0, 0, 3]))
    for bad in (4, -5, 2**62, -(2**63)):
        with pytest.raises(AssertionError, match=r'node "g" \(Gather\): an index is out of range -4 ... 3'):
            harness([[np.asarray([0, bad, 1], np.int64)]])
    assert "take_failed_value" in (tmp_path / "take.h").read_text()


def test_weights_of_another_model_are_refused(tmp_path):
    engine = qnn_ext.build(module_of(FILE), num_threads=1)
    exported = engine.export_c(tmp_path, "digits", weights="file")
    weights = tmp_path / "digits.weights"
    good = weights.read_bytes()
    harness = Harness(exported)
    (image,) = digits(module_of(FILE), 1)
    np.testing.assert_array_equal(harness([[image]])[0][0], engine(image))
    for place in (0, 4, 8, 16, 47):
        weights.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(AssertionError, match="not those that this code was compiled with"):
            harness([[image]])


def test_states_are_reset(tmp_path):
    """And go on from call to call."""
    module = module_of("digits_lstm_int8.tflite")
    qnn_ext.build(module, num_threads=1, code=False).export_c(tmp_path, "lstm", shared=True)
    (image,) = digits(module, 1)
    oracle = Interpreter(module)
    expected = [oracle(image), oracle(image)]
    np.save(tmp_path / "image.npy", image)
    script = (
        f"import sys, numpy as np; sys.path.insert(0, {str(tmp_path)!r}); from lstm import Model; model = Model(); "
        f"image = np.load({str(tmp_path / 'image.npy')!r}); first = model(image)[0], model(image)[0]; model.reset(); "
        f"np.save({str(tmp_path / 'found.npy')!r}, np.stack([*first, model(image)[0]]))"
    )
    checked(sys.executable, "-c", script)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), np.stack([*expected, expected[0]]), strict=True)
    assert not np.array_equal(*expected)


def test_manifest_and_header_agree(every_level):
    manifest = json.loads((every_level.folder / "digits.json").read_text())
    header = (every_level.folder / "digits.h").read_text()
    assert f'#define DIGITS_CHECKSUM "{manifest["checksum"]}"' in header
    assert f"#define DIGITS_WORKSPACE_BYTES {manifest['workspace']}\n" in header
    assert [one["target"]["mcpu"] for one in manifest["variants"]] == [
        *("sapphirerapids", "cascadelake", "alderlake", "skylake-avx512", "haswell", "x86-64")
    ]
    for one in manifest["variants"]:
        assert one["code"]["flash"] > one["code"]["largest"] > 0 and one["code"]["stack"] > 0


@pytest.fixture(scope="module")
def engine():
    """Built without machine code, as the command line does."""
    return qnn_ext.build(module_of(FILE), "x86-64", num_threads=1, code=False)


def test_the_same_export_twice(engine, tmp_path):
    """Equal bytes: exports can be compared, and kept in a repository."""
    first, second = (engine.export_c(tmp_path / name, "digits") for name in "ab")
    for file in first.files:
        if not file.endswith(".a"):
            assert (first.folder / file).read_bytes() == (second.folder / file).read_bytes(), file
    assert first.library.checksum == second.library.checksum


# ---- refusals ----------------------------------------------------------------------------------------------------


def test_loaded_engine_is_refused(tmp_path):
    qnn_ext.build(module_of(FILE), num_threads=1).save(tmp_path / "digits.qnn")
    with pytest.raises(ArtifactError, match="build the model again"):
        qnn_ext.load(tmp_path / "digits.qnn").export_c(tmp_path / "c")


def test_engine_without_code_does_not_run(engine):
    with pytest.raises(ArtifactError, match="code=False"):
        engine(*digits(module_of(FILE), 1))


def test_what_is_no_function_is_refused_by_name(tmp_path):
    module = small_module(lambda builder, params: [products_so_far(params[0])], [((16,), "float32")])
    engine = qnn_ext.build(module, num_threads=1, code=False)
    with pytest.raises(TargetError, match="cannot be one C function: cumprod is"):
        engine.export_c(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux forks here")
def test_a_crash_of_llvm_is_an_error(engine, tmp_path, monkeypatch):
    def dies(*_):
        os.write(2, b"LLVM ERROR: out of registers\n")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(plain, "codegen_build", dies)
    with pytest.raises(QnnError, match=r"LLVM crashed \(SIGKILL: LLVM ERROR: out of registers\) .* x86-64: please"):
        engine.export_c(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_targets_of_two_architectures_are_refused(tmp_path):
    engine = qnn_ext.build(module_of(FILE), ["x86-64", "rpi3"], num_threads=1, code=False)
    with pytest.raises(TargetError, match="aarch64 and x86_64"):
        engine.export_c(tmp_path)


@pytest.mark.parametrize(
    ("options", "problem"), [({"weights": "flash"}, "weights"), ({"threads": 0}, "threads"), ({"name": "9 ?"}, None)]
)
def test_options_are_checked(engine, options, problem, tmp_path):
    if problem is None:
        assert engine.export_c(tmp_path, **options).name == "model_9"
        return
    with pytest.raises(QnnError, match=problem):
        engine.export_c(tmp_path, **options)


def test_hostile_names_stay_text(tmp_path):
    """Names are the file's, and stand in comments, strings and docstrings; a model may have no weights."""
    module = small_module(lambda builder, params: [relax.op.add(params[0], params[1])], [((4,), "int32")] * 2)
    names = ('*/ #error "x" /*', '"""\n\';?' + chr(92)), ("*/#error",)
    inputs = tuple(replace(spec, name=name) for spec, name in zip(module.inputs, names[0], strict=True))
    outputs = tuple(replace(spec, name=name) for spec, name in zip(module.outputs, names[1], strict=True))
    module = replace(module, inputs=inputs, outputs=outputs, source='a*/"""b\n.tflite')
    exported = qnn_ext.build(module, num_threads=1, code=False).export_c(tmp_path, shared=True)
    given = [np.arange(4, dtype=np.int32), np.full(4, 7, np.int32)]
    np.testing.assert_array_equal(Harness(exported)([given])[0][0], sum(given))
    python = (tmp_path / f"{exported.name}.py").read_text()
    scope: dict = {"__file__": str(tmp_path / "x.py"), "__name__": "x"}
    exec(compile(python, "x.py", "exec"), scope)
    assert [spec.name for spec in scope["INPUTS"] + scope["OUTPUTS"]] == [*names[0], *names[1]]


# ---- names and literals ------------------------------------------------------------------------------------------


def test_names_become_identifiers():
    assert fields_of(["a/b:0", "a.b", "3x", "int", "", "ü"], "input", ()) == [
        *("a_b", "a_b_", "input2", "input3", "input4", "input5")
    ]
    assert identifier("MobileNet v2 (1.0)") == "mobilenet_v2_1_0"
    assert [identifier(name) for name in ("bool", "Class", "2d")] == ["model_bool", "model_class", "model_2d"]
    with pytest.raises(QnnError, match="no name"):
        identifier("??")


def test_literals_survive_the_compiler(tmp_path):
    texts = ['"\\?', "a\nb", "??/", "ü12", "\x001"]
    numbers = np.asarray([1e-40, 0.1, 3.4028235e38, 1 / 255], np.float32)
    prints = "".join(f"fwrite({c_string(t)}, 1, sizeof {c_string(t)} - 1, stdout);" for t in texts)
    floats = ", ".join(c_float(number) for number in numbers)
    source, program = tmp_path / "main.c", tmp_path / "main"
    prints += "fwrite(f, 1, sizeof f, stdout);"
    source.write_text(f"#include <stdio.h>\nint main(void) {{ float f[] = {{{floats}}}; {prints} return 0; }}\n")
    checked(compiler("x86_64"), "-Wall", "-Werror", source, "-o", program)
    found = subprocess.run([program], capture_output=True, check=True).stdout
    assert found == "".join(texts).encode() + numbers.tobytes()
