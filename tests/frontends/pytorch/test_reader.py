"""What a PyTorch file is, found out without executing it; damaged and foreign files get one clear error."""

import io
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext import LimitError, Limits
from qnn_ext.errors import ModelFormatError, QnnError, ShapeError, UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch, records
from qnn_ext.frontends.pytorch.exported.archive import _unpickle
from qnn_ext.frontends.pytorch.reader import PROGRAM, TORCHSCRIPT, read_archive

SHAPES = {"input": (2, 4)}


class Bomb:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("echo executed > executed",)


def model() -> torch.nn.Module:
    torch.backends.quantized.engine = "x86"
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    return torch.ao.quantization.quantize_dynamic(layers, dtype=torch.qint8)


@pytest.fixture(scope="module")
def script() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(model(), torch.zeros(2, 4)), buffer)
    return buffer.getvalue()


def saved(value) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_torchscript(script, tmp_path):
    """By content, whatever the file is called; as a path, as bytes, as an object."""
    assert read_archive(script).kind == TORCHSCRIPT
    path = tmp_path / "model.bin"
    path.write_bytes(script)
    x = np.ones((2, 4), np.float32)
    expected = torch.jit.load(io.BytesIO(script))(torch.from_numpy(x)).detach().numpy()
    for source in (path, str(path), script, torch.jit.load(io.BytesIO(script))):
        module = from_pytorch(source, shapes=SHAPES)
        np.testing.assert_array_equal(qnn_ext.Interpreter(module)(x), expected)


def test_program(tmp_path):
    path = tmp_path / "model.pt"
    torch.export.save(torch.export.export(torch.nn.Linear(4, 3).eval(), (torch.zeros(2, 4),)), path)
    assert read_archive(path).kind == PROGRAM
    assert from_pytorch(path).inputs[0].shape == (2, 4)


def test_pickled_module_is_never_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in (saved(Bomb()), saved({"weight": torch.ones(2), "x": Bomb()}), pickle.dumps(Bomb())):
        with pytest.raises(ModelFormatError, match=r"not opened.*torch\.jit\.trace"):
            from_pytorch(content, shapes=SHAPES)
    assert not os.path.exists("executed")


def test_pickled_module(tmp_path):
    with pytest.raises(ModelFormatError, match=r"torch\.nn\.modules\.container\.Sequential.*torch\.export\.save"):
        from_pytorch(saved(torch.nn.Sequential(torch.nn.Linear(2, 2))), shapes=SHAPES)


def test_state_dict():
    with pytest.raises(ModelFormatError, match="weights only"):
        from_pytorch(saved(torch.nn.Linear(2, 2).state_dict()), shapes=SHAPES)


def test_module_object():
    with pytest.raises(ModelFormatError, match=r"a Sequential is Python code.*torch\.jit\.trace"):
        from_pytorch(model())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\x1c\x00\x00\x00TFL3" + bytes(32), "from_tflite"),
        (b"hello, this is text", "not a PyTorch archive"),
        (b"PK\x03\x04" + bytes(40), "truncated or damaged"),
    ],
)
def test_other_files(content, message):
    with pytest.raises(ModelFormatError, match=message):
        from_pytorch(content, shapes=SHAPES)


def test_missing_file(tmp_path):
    with pytest.raises(ModelFormatError, match="no such file"):
        from_pytorch(tmp_path / "nothing.pt")


def test_other_zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/readme.txt", "hello")
    with pytest.raises(ModelFormatError, match="without the records"):
        from_pytorch(buffer.getvalue())


def test_truncated(script):
    for end in (10, len(script) // 3, len(script) - 30, len(script) - 1):
        with pytest.raises(ModelFormatError):
            from_pytorch(script[:end], shapes=SHAPES)


def test_garbled(script):
    """A flipped byte fails a checksum, breaks the directory, or lies in padding that nothing reads."""
    rng = np.random.default_rng(0)
    refused = 0
    for position in rng.integers(0, len(script), 60):
        garbled = bytearray(script)
        garbled[position] ^= 0xFF
        try:
            from_pytorch(bytes(garbled), shapes=SHAPES)
        except QnnError:
            refused += 1
    assert refused > 20


def _repacked(script: bytes, change) -> bytes:
    """The archive with the records that `change` alters, with right checksums."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(script)) as source, zipfile.ZipFile(buffer, "w") as target:
        for info in source.infolist():
            target.writestr(info.filename, change(info.filename, source.read(info)))
    return buffer.getvalue()


def test_broken_records(script):
    """Well-formed archives with nonsense inside."""
    for record in (".py", "data.pkl", "constants.pkl"):
        broken = _repacked(script, lambda name, data, r=record: data[: len(data) // 2] if name.endswith(r) else data)
        with pytest.raises(QnnError):
            from_pytorch(broken, shapes=SHAPES)


def _zip(records, compression=zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in records:
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def _with_directory(content: bytes, offset: int, value: int) -> bytes:
    """The archive with four bytes of its directory's first entry changed."""
    start = content.index(b"PK\x01\x02") + offset
    return content[:start] + value.to_bytes(4, "little") + content[start + 4 :]


SOUND = [("m/data.pkl", b"x" * 100), ("m/constants.pkl", b""), ("m/code/a.py", b"")]
ZIPS = {
    "bomb": (_zip([*SOUND, ("m/bomb", bytes(1 << 24))], zipfile.ZIP_DEFLATED), "unpacks to 16,777,"),
    "declared bomb": (_with_directory(_zip(SOUND, zipfile.ZIP_DEFLATED), 24, 0xFFFFFFF0), "which is too much"),
    "two sizes": (_with_directory(_zip(SOUND), 24, 1000), "two sizes, 100 and 1000"),
    "overlap": (
        _with_directory(_with_directory(_zip(SOUND), 24, 1000), 20, 1000),
        "records of the zip archive overlap",
    ),
    "absolute": (_zip([("/etc/data.pkl", b"")]), "points outside the archive"),
    "upwards": (_zip([*SOUND, ("m/../../x", b"")]), "points outside the archive"),
    "lzma": (_zip(SOUND, zipfile.ZIP_LZMA), "compressed in a way that PyTorch does not use"),
    "another folder": (_zip([*SOUND, ("n/data.pkl", b"")]), "two records are named 'data.pkl'"),
    "comment": (_zip(SOUND)[:-2] + b"\x03\x00abc", "has data after its directory"),
}


@pytest.mark.parametrize("name", ZIPS)
def test_zip_archives_that_are_traps(name):
    """As a model, and as weights within a program."""
    content, message = ZIPS[name]
    with pytest.raises(ModelFormatError, match=message):
        from_pytorch(content, shapes=SHAPES)
    with pytest.raises(ModelFormatError, match=message):
        _unpickle(content, "weight")


def test_more_records_than_a_model_has(monkeypatch):
    monkeypatch.setattr(records, "_MOST_RECORDS", 2)
    with pytest.raises(ModelFormatError, match="over 2 records"):
        from_pytorch(_zip(SOUND), shapes=SHAPES)


def test_an_archive_that_unpacks_beyond_the_memory_limit():
    content = _zip([*SOUND, ("m/code/b.py", os.urandom(1 << 12) * 4)], zipfile.ZIP_DEFLATED)
    with pytest.raises(LimitError, match=r"unpacking the zip archive takes .*--limit memory="):
        from_pytorch(content, shapes=SHAPES, limits=Limits(memory=1 << 10))


def test_code_that_reaches_for_files(script):
    def change(name, data):
        if not name.endswith(".py"):
            return data
        return data.replace(b"def forward", b"# torch.save(x)\n  def forward")

    with pytest.raises(ModelFormatError, match="reads or writes files"):
        from_pytorch(_repacked(script, change), shapes=SHAPES)


# ---- arguments ---------------------------------------------------------------------------------------------------


def test_shapes_are_needed(script):
    with pytest.raises(ShapeError, match=r"shapes=\{'input'.*example_inputs="):
        from_pytorch(script)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shapes": {"image": (2, 4)}}, "has an entry 'image'"),
        ({"shapes": {}}, "lacks an entry for 'input'"),
        ({"shapes": [(2, 4), (2, 4)]}, "holds 2 values"),
        ({"shapes": {"input": (0, 4)}}, "at least 1"),
        ({"shapes": {"input": 4}}, "sequence of integers"),
        ({"shapes": {"input": (2, 5)}}, "PyTorch itself cannot run quantized::linear_dynamic"),
        ({"example_inputs": (np.zeros((2, 4), np.int64),)}, "PyTorch itself cannot run"),
    ],
)
def test_wrong_shapes(script, arguments, message):
    with pytest.raises(ShapeError, match=message):
        from_pytorch(script, **arguments)


def test_example_inputs(script):
    for example in (
        np.zeros((5, 4), np.float32),
        torch.zeros(5, 4),
        (torch.zeros(5, 4),),
        {"input": torch.zeros(5, 4)},
    ):
        assert from_pytorch(script, example).inputs[0].shape == (5, 4)
    assert from_pytorch(script, shapes=(5, 4)).inputs[0].shape == (5, 4)


def test_unknown_engine(script):
    with pytest.raises(QnnError, match="engine must be one of"):
        from_pytorch(script, shapes=SHAPES, engine="cudnn")


def test_engine_is_restored(script):
    torch.backends.quantized.engine = "onednn"
    from_pytorch(script, shapes=SHAPES, engine="qnnpack")
    assert torch.backends.quantized.engine == "onednn"
    torch.backends.quantized.engine = "x86"


def test_training_mode():
    with pytest.raises(UnsupportedOperatorError, match=r"model\.eval\(\)"):
        from_pytorch(torch.jit.script(torch.nn.Sequential(torch.nn.Dropout(0.5))), shapes=[(2, 4)])


def test_unsupported_operator():
    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.linalg.inv(x)

    traced = torch.jit.trace(Odd().eval(), torch.eye(3))
    with pytest.raises(UnsupportedOperatorError, match=r"aten::linalg_inv \(.*line \d+.*rewrite this part"):
        from_pytorch(traced, shapes=[(3, 3)])


def test_missing_torch(tmp_path):
    """The message names the pip command; importing qnn_ext needs no torch."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import qnn_ext\n"
        "from qnn_ext.frontends.pytorch import from_pytorch\n"
        "try:\n    from_pytorch('x.pt')\n"
        "except qnn_ext.QnnError as error:\n    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'qnn-ext[torch]'" in result.stdout
