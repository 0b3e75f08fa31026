"""Files of strangers: ordinary files only, sizes by arithmetic before anything is allocated, and never a pickle."""

from __future__ import annotations

import ast
import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError, QnnError, QuantizationError
from qnn_ext.autotune import read_log
from qnn_ext.cli.formats import recognize
from qnn_ext.files.reading import Npz, read_npy, read_text
from qnn_ext.frontends.mxnet.reader import read_params
from qnn_ext.images import load_image
from qnn_ext.module import TensorSpec
from qnn_ext.quantize.dataset import batches
from qnn_ext.quantize.table import CalibrationTable

ROOT = Path(__file__).parents[2]
SPEC = TensorSpec("x", (1, 8, 8, 3), "float32")
READERS = {
    "tflite": qnn_ext.from_tflite,
    "onnx": qnn_ext.from_onnx,
    "pytorch": qnn_ext.from_pytorch,
    "mxnet": lambda path: qnn_ext.from_mxnet(path, {}),
    "params": read_params,
    "qnn": qnn_ext.load,
    "key": lambda path: qnn_ext.load(path, verify=path),
    "format": lambda path: recognize(Path(path)),
    "table": CalibrationTable.load,
    "log": read_log,
    "image": lambda path: load_image(path, SPEC),
    "labels": lambda path: read_text(path, InputError),
    "npy": lambda path: read_npy(path, InputError),
    "npz": lambda path: Npz(path, InputError),
}


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file(tmp_path, reader):
    """Named pipes would be waited for and devices read for ever; each is reported with its path."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path, tmp_path / "fifo", "/dev/zero", tmp_path / "missing", tmp_path / "loop", "nul\0"):
        with pytest.raises(QnnError, match=r"not a regular file|no such file|cannot be read") as caught:
            READERS[reader](path if isinstance(path, str) else str(path))
        assert str(path).rstrip("\0") in str(caught.value)


# ---- arrays ------------------------------------------------------------------------------------------------------


def npy(shape: str = "(2, 3)", descr: str = "'<f4'", data: bytes = bytes(24), version: int = 1) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + data


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


class Evil:
    def __reduce__(self):
        return (os.abort, ())


BAD = {
    "empty": b"",
    "text": b"hello",
    "pickle": pickle.dumps(Evil()),
    "objects": npy(descr="'|O'", data=pickle.dumps([Evil()] * 6)),
    "object fields": npy(descr="[('a', '|O')]", data=pickle.dumps([Evil()] * 6)),
    "strings": npy(descr="'<U4'", data=bytes(96)),
    "truncated": npy(data=bytes(23)),
    "huge": npy(shape=f"({1 << 40}, 3)"),
    "overflowing": npy(shape=f"({1 << 62}, {1 << 62})"),
    "negative": npy(shape="(-2, -3)"),
    "no shape": npy(shape="7"),
    "floats": npy(shape="(2.0, 3.0)"),
    "dtype": npy(descr="'nonsense'"),
    "version": npy(version=9),
    "header": b"\x93NUMPY\x01\x00\xff\xff{",
    "deep": npy(shape="(" * 3000 + ")" * 3000),
    "no keys": npy().replace(b"'shape'", b"'shap_'"),
}


@pytest.mark.parametrize("name", BAD)
def test_arrays_that_are_none(tmp_path, name):
    path = tmp_path / "x.npy"
    path.write_bytes(BAD[name])
    for mapped in (False, True):
        with pytest.raises(InputError, match=r"x\.npy: not a \.npy file of numbers"):
            read_npy(path, InputError, mapped)
    path = tmp_path / "x.npz"
    path.write_bytes(zipped(("x.npy", BAD[name])))
    with Npz(path, InputError) as arrays, pytest.raises(InputError, match=r"x\.npz: array 'x' cannot be read"):
        arrays["x"]
    for dataset in (tmp_path / "x.npy", tmp_path / "x.npz"):
        with pytest.raises(QuantizationError, match=r"x\.np"):
            list(batches(dataset, [SPEC]))


def test_arrays_are_those_of_numpy(tmp_path, rng):
    arrays = {
        "a": rng.standard_normal((3, 4)).astype(np.float32),
        "fortran": np.asfortranarray(rng.integers(0, 9, (3, 4))),
        "big endian": np.arange(5, dtype=">i2"),
        "scalar": np.float64(3),
        "none": np.zeros((0, 4), np.uint8),
        "truth": np.array([True, False]),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    for file in ("a.npz", "b.npz"):
        with Npz(tmp_path / file, InputError) as stored:
            assert stored.names() == list(arrays)
            for name, value in arrays.items():
                np.testing.assert_array_equal(stored[name], value, strict=True)
    for value in arrays.values():
        np.save(tmp_path / "x.npy", value)
        for mapped in (False, True):
            np.testing.assert_array_equal(read_npy(tmp_path / "x.npy", InputError, mapped), value, strict=True)


def test_archives_that_are_none(tmp_path):
    path = tmp_path / "x.npz"
    later = bytearray(zipped(("x.npy", npy())))
    later[later.rindex(b"PK\x01\x02") + 6] = 255  # the version of zip that is needed
    for content in (b"", b"PK", bytes(later), npy(), zipped(("x.npy", npy()), ("x", b""))):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"x\.npz: not a \.npz file of numbers"):
            Npz(path, InputError)
    with pytest.raises(QnnError, match="nor a PyTorch program, or damaged"):
        path.write_bytes(bytes(later))
        recognize(path)


@pytest.mark.parametrize("declared", [True, False], ids=["size declared", "size hidden"])
def test_bombs(tmp_path, declared):
    """A gigabyte of zeros in a megabyte: refused before 400 MB are taken, whatever the zip says of its size."""
    path = tmp_path / "x.npz"
    size = 1 << 30
    archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with archive, archive.open("x.npy", "w") as member:
        member.write(npy(shape=f"({size},)", descr="'|u1'", data=b""))
        for _ in range(size >> 24):
            member.write(bytes(1 << 24))
    if not declared:
        content = bytearray(path.read_bytes())
        for at in (content.rindex(b"PK\x01\x02") + 24, content.index(b"PK\x03\x04") + 22):
            content[at : at + 4] = (1000).to_bytes(4, "little")
        path.write_bytes(content)
    script = (
        "import resource, sys; from qnn_ext import InputError; from qnn_ext.files.reading import Npz\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20))\n"
        "try: Npz(sys.argv[1], InputError)['x']\n"
        "except InputError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert ("would unpack to" if declared else "array 'x' cannot be read") in done.stdout, done.stdout + done.stderr


# ---- images ------------------------------------------------------------------------------------------------------


def test_an_image_of_too_many_pixels(tmp_path):
    """PNGs of some bytes whose headers claim sizes on both sides of where Pillow itself warns and refuses."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    path = tmp_path / "bomb.png"
    for width, message in ((12_000, "of 144000000 pixels"), (60_000, "decompression bomb"), (2_000_000, "bomb")):
        header = struct.pack(">IIBBBBB", width, 12_000, 8, 2, 0, 0, 0)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))))
        with pytest.raises(InputError, match=rf"bomb\.png: .*{message}"):
            load_image(path, SPEC)


def test_formats_that_start_programs_are_no_images(tmp_path):
    """Pillow hands PostScript to Ghostscript, which is a language."""
    path = tmp_path / "x.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    with pytest.raises(InputError, match="neither an image"):
        load_image(path, SPEC)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of what is damaged
def test_damaged_images(tmp_path, rng):
    from PIL import Image

    path = tmp_path / "image"
    for form in ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP"):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path, form)
        assert load_image(path, SPEC).shape == SPEC.shape
        content = path.read_bytes()
        for position in rng.integers(0, len(content), 40):
            damaged = bytearray(content)
            damaged[position] ^= 1 << int(rng.integers(8))
            path.write_bytes(damaged if position % 2 else content[:position])
            try:
                load_image(path, SPEC)
            except InputError as error:
                assert str(path) in str(error)


# ---- pickles -----------------------------------------------------------------------------------------------------

PIPES = {
    "qnn_ext/frontends/pytorch/child.py": "from the process that started it",
    "qnn_ext/processes/channel.py": "between a process and a worker that it started",
}
"""Where pickles are loaded: through pipes between our own processes."""


def test_no_pickle_is_loaded_from_a_file():
    """np.load never takes objects, torch.load only tensors; nothing else can, but over pipes of our own."""
    unpicklers = {"load", "loads", "Unpickler"}
    found = set()
    for folder in ("qnn_ext", "benchmarks", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                    continue
                module, name = ast.unparse(call.func.value), call.func.attr
                given = {item.arg: getattr(item.value, "value", None) for item in call.keywords}
                where = f"{path.relative_to(ROOT)}:{call.lineno}"
                if (module, name) in (("np", "load"), ("np.lib.format", "read_array")):
                    assert given.get("allow_pickle") is False, where
                if (module, name) == ("torch", "load"):
                    assert given.get("weights_only") is True, where
                if module in ("pickle", "cloudpickle", "joblib", "dill", "marshal") and name in unpicklers:
                    found.add(f"{path.relative_to(ROOT)}")
                assert (module, name) not in (("yaml", "load"), ("shelve", "open")), where
    assert found == set(PIPES)
