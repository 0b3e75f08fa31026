"""PyTorch files are imported in a separate process: nothing in them can crash, hang or fill up this one."""

import io
import re
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

import qnn_ext
from qnn_ext import LimitError, Limits, ModelFormatError
from qnn_ext.errors import InputError, UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch, isolated
from qnn_ext.frontends.pytorch.child import import_archive
from qnn_ext.frontends.pytorch.reader import read_archive
from qnn_ext.frontends.pytorch.torchscript.evaluate import where
from qnn_ext.frontends.pytorch.transfer import pack_module, unpack, unpack_module
from qnn_ext.limits import limited
from qnn_ext.module import FloatNote, QnnModule, State, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.processes.isolation import Ended
from qnn_ext.qparams import QParams
from tests.threads import at_once

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs fork and /proc")

DATA = Path(qnn_ext.__file__).parent / "data"


def script(body: str) -> bytes:
    """A TorchScript archive of `forward(x)` with these lines and `return x`."""
    lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")

    class Module(torch.jit.ScriptModule):
        def __init__(self) -> None:
            super().__init__()
            self.define(f"def forward(self, x: Tensor) -> Tensor:\n{lines}\n    return x\n")

    buffer = io.BytesIO()
    torch.jit.save(Module().eval(), buffer)
    return buffer.getvalue()


# ---- scripts that would hang, fill or end a process ----------------------------------------------------------------

FEW = Limits(constants=1 << 20)
NESTED = "\n".join(["a0 = [1, 1]", *(f"a{i + 1} = [a{i}, a{i}]" for i in range(40)), "x = x + len(a40)"])
LEAST = "n = -9223372036854775807 - (x.dim() - 1)\n"
HOSTILE = {
    "endless loop": ("n = 0\nwhile True:\n    n += 1", LimitError, r"loop takes over 1,024 steps.*--limit unrolled="),
    "text": ("s = 'x'\nfor i in range(60):\n    s = s + s\nprint(s)", ModelFormatError, "aten::add .*262,144 items"),
    "list": ("a = [1] * 10000000000\nx = x + a[0]", ModelFormatError, r"aten::mul .*262,144 items"),
    "nested lists": (NESTED, ModelFormatError, "262,144 items"),
    "tensor": ("x = x + torch.ones([100000, 1000000])[0, 0]", LimitError, r"aten::ones .*16,777,216"),
    "doubled": (
        "a = torch.ones([16])\nfor i in range(60):\n    a = torch.cat([a, a])\nx = x + a[0]",
        LimitError,
        r"aten::cat .*--limit constants=",
    ),
    "activation": ("x = x.repeat([100000, 100000])", LimitError, r"aten::repeat .*\(400000, 400000\)"),
    "quotient": (LEAST + "x = x + n // (1 - x.dim())", ModelFormatError, "aten::floordiv .*by −1, which overflows"),
    "remainder": ("x = x + 5 % (x.dim() - 2)", ModelFormatError, "aten::remainder .*by zero"),
    "quotient of tensors": (
        "a = torch.full([2], -2147483648, dtype=torch.int32)\n"
        "x = x + torch.div(a, torch.full([2], -1, dtype=torch.int32), rounding_mode='trunc')",
        ModelFormatError,
        "aten::div .*-2147483648 by −1",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_script_is_refused(name):
    """In a file, and as an object that this process holds."""
    body, kind, message = HOSTILE[name]
    content = script(body)
    with pytest.raises(kind, match=message):
        from_pytorch(content, shapes=[(4, 4)], limits=FEW)
    with pytest.raises(kind):
        from_pytorch(torch.jit.load(io.BytesIO(content)), shapes=[(4, 4)], limits=FEW)


def test_operators_are_counted():
    body = "n = 0\nfor i in range(50):\n    for j in range(50):\n        n += i * j\nx = x + n"
    with pytest.raises(LimitError, match=r"evaluates?.*5,000 operators|over 5,000 operators"):
        from_pytorch(script(body), shapes=[(4, 4)], limits=Limits(evaluations=5000))


class Stateful(torch.nn.Module):
    """PyTorch runs `__setstate__` of a module that has one when it loads it."""

    def __init__(self) -> None:
        super().__init__()
        self.n = 1

    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return self.n, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        n = state[0]
        while n > 0:
            n += 2
        self.n = n
        self.training = state[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.n


def test_a_loop_while_the_archive_is_read():
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Stateful().eval()), buffer)
    with pytest.raises(LimitError, match=r"bytes: reading the archive takes over 1 seconds.*--limit seconds=10"):
        from_pytorch(buffer.getvalue(), shapes=[(4, 4)], limits=Limits(seconds=1))


def test_time():
    body = "n = 0\nfor i in range(1000):\n    for j in range(1000):\n        n += i * j\nx = x + n"
    with pytest.raises(LimitError, match=r"over 0\.5 seconds; .*--limit seconds=5"):
        from_pytorch(script(body), shapes=[(4, 4)], limits=Limits(seconds=0.5))


def test_memory():
    body = "a = torch.ones([1 << 23])\nb = a + 1\nc = b + 1\nd = c + 1\nx = x + (a + b + c + d)[0]"
    with pytest.raises(LimitError, match=r"bytes.*--limit memory="):
        from_pytorch(script(body), shapes=[(4, 4)], limits=Limits(memory=1 << 25))


# ---- PyTorch's own crashes ---------------------------------------------------------------------------------------


def test_code_that_ends_the_reader():
    """PyTorch 2.13 follows a null pointer where a tensor is indexed by nothing, which a flipped byte can cause."""
    buffer, hits = io.BytesIO(), 0
    with zipfile.ZipFile(io.BytesIO(script("x = x[0]"))) as source, zipfile.ZipFile(buffer, "w") as target:
        for info in source.infolist():
            content = source.read(info)
            if info.filename.endswith(".py"):
                changed = re.sub(rb"torch\.select\(x, 0, 0\)", b"x[]", content)
                hits, content = hits + (changed != content), changed
            target.writestr(info.filename, content)
    assert hits == 1
    with pytest.raises(
        ModelFormatError, match=r"crashed while reading the archive \(SIGSEGV\).*export the model again"
    ):
        from_pytorch(buffer.getvalue(), shapes=[(4, 4)])
    assert from_pytorch(script("x = x + 1"), shapes=[(4, 4)]).inputs[0].shape == (4, 4)


@pytest.mark.parametrize("code", ["SIGSEGV", "SIGFPE", "SIGABRT", "exit code 3"])
def test_a_crash_is_an_error(monkeypatch, code):
    def ended(*_, **__):
        raise Ended("crash", code, "reading the archive")

    monkeypatch.setattr(isolated, "call", ended)
    with pytest.raises(ModelFormatError, match=rf"PyTorch crashed while reading the archive \({code}\)"):
        from_pytorch(script("x = x + 1"), shapes=[(4, 4)])


# ---- what comes back ---------------------------------------------------------------------------------------------

BUNDLED = sorted(path.name for path in DATA.glob("*.pt*"))
REAL = (
    "bert_tiny_pt2e_x86.pt2", "cnn_eager_fbgemm.pt", "cnn_eager_qnnpack.pt", "cnn_eager_x86.pt", "cnn_fx_qnnpack.pt",
    "cnn_fx_x86.pt", "cnn_pt2e_x86.pt2", "cnn_pt2e_x86_qat.pt2", "cnn_pt2e_xnn.pt2", "enc_fx_x86_sdpa0.pt",
    "enc_pt2e_x86.pt2", "enc_pt2e_x86_dyn.pt2", "enc_pt2e_xnn.pt2", "lstm_dynamic_x86.pt",
    "mobilenet_v2_eager_fbgemm.pt",
)  # fmt: skip


def check_equal(path: Path, example: tuple | None) -> None:
    """The module from the other process equals the one made in this process, bit for bit."""
    engine = next((engine for engine in ("fbgemm", "qnnpack") if engine in path.name), "x86")
    found = from_pytorch(path, example, engine=None if path.suffix == ".pt2" else engine)
    with limited(None):
        expected = import_archive(read_archive(path), example, None, engine)
    tvm.ir.assert_structural_equal(found.ir, expected.ir, map_free_vars=False)
    assert found.script(show_meta=True) == expected.script(show_meta=True)
    assert str(found.inputs) == str(expected.inputs) and str(found.outputs) == str(expected.outputs)
    assert (found.notes, found.source) == (expected.notes, expected.source)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_models_are_equal(name):
    check_equal(DATA / name, (np.zeros((1, 1, 8, 8), np.float32),) if name.endswith(".pt") else None)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", REAL)
def test_real_models_are_equal(models, name):
    path = models / "pytorch" / name
    with np.load(path.with_name(f"{path.stem}_io.npz")) as golden:
        check_equal(path, (golden["x"],) if path.suffix == ".pt" else None)


def test_everything_of_a_module_travels(rng):
    """QParams per channel, states, notes, a batch of any size, constants of every dtype."""
    names = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64", "bool")
    values = [constant(rng.integers(0, 2, (40, 100)).astype(name)) for name in names]
    x = relax.Var("x", relax.TensorType((40, 100), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x], attrs={"num_input": 1}):
        with builder.dataflow():
            results = [builder.emit(relax.op.astype(value, "float32")) for value in values]
            results.append(builder.emit(relax.op.add(x, constant(np.float32(3)))))
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    qparams = QParams(rng.random(100), rng.integers(0, 9, 100), "int8", 1)
    module = QnnModule(
        builder.get(),
        (TensorSpec("x", (40, 100), "float32", qparams, True),),
        tuple(TensorSpec(f"y{index}", (40, 100), "float32") for index in range(len(results))),
        (State("kept", rng.random((2, 0, 3)).astype(np.float32)), State("zähler", np.asarray(7, np.int64))),
        (FloatNote("n", "o", "weil"),),
        "a source",
    )
    message = b"".join(pack_module(module))
    found = unpack_module(message)
    tvm.ir.assert_structural_equal(found.ir, module.ir, map_free_vars=False)
    assert found.script(show_meta=True) == module.script(show_meta=True)
    assert str(found.inputs) == str(module.inputs) and found.inputs[0].dynamic_batch
    np.testing.assert_array_equal(found.inputs[0].qparams.scale, qparams.scale)
    np.testing.assert_array_equal(found.inputs[0].qparams.zero_point, qparams.zero_point)
    assert found.inputs[0].qparams.axis == 1
    for state, expected in zip(found.states, module.states, strict=True):
        assert (state.name, state.initial.dtype) == (expected.name, expected.initial.dtype)
        np.testing.assert_array_equal(state.initial, expected.initial)
    assert (found.notes, found.source) == (module.notes, module.source)
    with pytest.raises(ValueError, match="describes"):
        unpack(message[:-1])


def test_errors_are_those_of_the_import(tmp_path):
    """Class and message."""
    content = script("x = torch.linalg.inv(x)")
    with pytest.raises(UnsupportedOperatorError) as here:
        from_pytorch(torch.jit.load(io.BytesIO(content)), shapes=[(3, 3)])
    with pytest.raises(UnsupportedOperatorError) as there:
        from_pytorch(content, shapes=[(3, 3)])
    assert str(there.value) == str(here.value)
    with pytest.raises(InputError, match="example_inputs cannot be sent"):
        from_pytorch(content, (lambda: 1,))


def test_imports_in_threads():
    content = script("x = x + 1")
    modules = at_once(lambda _: from_pytorch(content, shapes=[(2, 3)]), range(2))
    assert [module.inputs[0].shape for module in modules] == [(2, 3)] * 2


# ---- the walk ----------------------------------------------------------------------------------------------------


class Damaged:
    """A node whose debug information cannot be read."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def kind(self) -> str:
        return "aten::foo"

    def sourceRange(self) -> str:
        raise self.error


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), MemoryError()])
def test_debug_information_that_cannot_be_read(error):
    assert where(Damaged(error)) == "aten::foo"
