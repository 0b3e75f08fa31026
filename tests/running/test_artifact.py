"""`.qnn` files that are damaged or altered: reported before anything in them is used, always as one of our errors."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import lzma
import random
import subprocess
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import qnn_ext
from qnn_ext import ArtifactError, QnnError
from qnn_ext.files.container import MANIFEST, Reader
from qnn_ext.running.model import LATER
from tests.cases.loops import as_model
from tests.passes.modules import module, products_so_far
from tests.qnn_files import (
    KERNELS,
    describe,
    description_of,
    kernels_of,
    members_of,
    rewrite,
    rezip,
    write_members,
    zip_members,
)

DATA = Path(qnn_ext.__file__).parent / "data"


@pytest.fixture(scope="module")
def engine() -> qnn_ext.Engine:
    return qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_lstm_int8.tflite"), num_threads=1)


@pytest.fixture(scope="module")
def saved(engine, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "lstm.qnn"
    engine.save(path)
    return path


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "m.qnn"


# ---- the container -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip archive", b"PK\x05\x06" + bytes(18)])
def test_load_refuses_other_files(tmp_path, content):
    path = tmp_path / "m.qnn"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"m\.qnn"):
        qnn_ext.load(path)


def test_load_of_nothing(tmp_path):
    for path in (tmp_path / "missing.qnn", tmp_path):
        with pytest.raises(ArtifactError, match=r"no such file|not a regular file"):
            qnn_ext.load(path)


def test_damaged_bytes_are_noticed(saved, tmp_path, rng):
    """Flipped bits and truncation anywhere: one of our errors, or a file that is still intact."""
    content = saved.read_bytes()
    path = tmp_path / "m.qnn"
    for position in rng.integers(0, len(content), 60):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        _load_or_own_error(path)
    for length in rng.integers(0, len(content), 20):
        path.write_bytes(content[:length])
        with pytest.raises(ArtifactError):
            qnn_ext.load(path)


def _load_or_own_error(path: Path) -> None:
    try:
        qnn_ext.load(path)
    except QnnError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize(
    "member", ["qnn.json.xz", "kernels0.json.xz", "states.bin.zlib", "model0.so.xz", "weights0.bin.xz"]
)
def test_checksums(saved, path, member):
    """Every byte of every member counts, whatever the zip's own check says, which is computed anew here."""
    content = zip_members(saved)[member]
    for position in (0, len(content) // 2, len(content) - 1):
        altered = bytearray(content)
        altered[position] ^= 0x10
        rezip(saved, path, {member: bytes(altered)})
        with pytest.raises(ArtifactError, match=f"{member.partition('.')[0]}"):
            qnn_ext.load(path)


def test_nothing_of_an_altered_library_is_executed(saved, path, tmp_path):
    """A valid library, with code that runs when it is loaded, under the manifest of another."""
    source, library, mark = tmp_path / "evil.c", tmp_path / "evil.so", tmp_path / "marker"
    source.write_text(f'#include <stdio.h>\n__attribute__((constructor)) void f() {{ fclose(fopen("{mark}", "w")); }}')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    evil = lzma.compress(library.read_bytes())
    manifest = json.loads(zip_members(saved)[MANIFEST])
    manifest["members"]["model0.so.xz"].update(bytes=len(evil), unpacked=library.stat().st_size)
    rezip(saved, path, {"model0.so.xz": evil, MANIFEST: json.dumps(manifest).encode()})
    with pytest.raises(ArtifactError, match="checksum of model0"):
        qnn_ext.load(path)
    assert not mark.exists()
    rewrite(saved, path, {"model0.so": library.read_bytes()})  # with its checksum it would be
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        qnn_ext.load(path)
    assert mark.exists()


def test_members_that_the_manifest_does_not_know(saved, path):
    for name in ("extra", "model1.so", "../model0.so", "qnn.json"):
        rezip(saved, path, {name: b"?"})
        with pytest.raises(ArtifactError, match="not in its manifest"):
            qnn_ext.load(path)
        write_members(path, {**members_of(saved), f"{name}?": b"?"})
        with pytest.raises(ArtifactError, match="is unknown"):
            qnn_ext.load(path)


def test_members_of_one_name(saved, path):
    path.write_bytes(saved.read_bytes())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(MANIFEST, b"{}")
    with pytest.raises(ArtifactError, match="two with the same name"):
        qnn_ext.load(path)
    write_members(path, {**members_of(saved), "weights0.bin.zlib": b"?"})
    with pytest.raises(ArtifactError, match="two members with the same name"):
        qnn_ext.load(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_members_packed_by_the_zip(saved, path, method):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in zip_members(saved).items():
            archive.writestr(name, content)
    with pytest.raises(ArtifactError, match="compressed or encrypted by the zip"):
        qnn_ext.load(path)


def test_older_and_newer_formats(saved, path):
    with zipfile.ZipFile(path, "w") as archive:  # as format 2 was
        archive.writestr("qnn.json", json.dumps({"format": 2}))
    with pytest.raises(ArtifactError, match=r"m\.qnn: written by an older version of qnn_ext; compile the model again"):
        qnn_ext.load(path)
    manifest = json.loads(zip_members(saved)[MANIFEST])
    rezip(saved, path, {MANIFEST: json.dumps({**manifest, "format": 99}).encode()})
    with pytest.raises(ArtifactError, match="another version"):
        qnn_ext.load(path)


BOMB = 1 << 30  # bytes


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Zeros, by the quickest way to pack many."""
    packer = zlib.compressobj(1)
    return b"".join(packer.compress(bytes(1 << 24)) for _ in range(BOMB >> 24)) + packer.flush()


@pytest.mark.parametrize("declared", [None, BOMB], ids=["size hidden", "size declared"])
@pytest.mark.parametrize("member", ["qnn.json", "kernels0.json", "weights0.bin", "states.bin", "model0.so"])
def test_bombs(saved, path, bomb, member, declared):
    """A gigabyte in 5 MB: refused by its declared size, or as soon as there is more than declared; 500 MB suffice."""
    stored = {name: content for name, content in zip_members(saved).items() if not name.startswith(member)}
    manifest = json.loads(stored[MANIFEST])
    old = next(name for name in manifest["members"] if name.startswith(member))
    fields = manifest["members"].pop(old)
    fields |= {"bytes": len(bomb), "sha256": hashlib.sha256(bomb).hexdigest()}
    fields["unpacked"] = declared or fields["unpacked"]
    manifest["members"][member + ".zlib"] = fields
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**stored, MANIFEST: json.dumps(manifest).encode(), member + ".zlib": bomb}.items():
            archive.writestr(name, content)
    script = (
        "import resource, sys, qnn_ext, tvm_ffi; resource.setrlimit(resource.RLIMIT_DATA, (500 << 20, 500 << 20))\n"
        "try: repr(qnn_ext.load(sys.argv[1]))\n"
        "except qnn_ext.ArtifactError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert "unpack" in done.stdout or "bytes, more than" in done.stdout, done.stdout + done.stderr


def test_mapped_members_are_checked(path, rng):
    """Those that are large and stored as they are: damage anywhere in them is found, by the zip's checksum."""
    content = rng.integers(0, 256, (1 << 24) + 3, np.uint8).tobytes()
    write_members(path, {"weights0.bin": content})
    with open(path, "rb") as file:
        mapped = Reader(file).mapped("weights0.bin")
    assert mapped is not None and bytes(mapped) == content
    start = path.read_bytes().index(content[:64])
    for position in (0, len(content) // 2, len(content) - 1):
        damaged = bytearray(path.read_bytes())
        damaged[start + position] ^= 0x10
        (other := path.with_name("other.qnn")).write_bytes(damaged)
        with open(other, "rb") as file, pytest.raises(ArtifactError, match=r"checksum of weights0\.bin differs"):
            Reader(file).mapped("weights0.bin")


# ---- the description ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("source", 3, "source must be a string"),
        ("source", "\ud800", "source must be a string"),
        ("extra", 3, "must be an object with only the fields source, "),
        ("inputs", 3, "inputs must be a list"),
        ("inputs.0.name", None, r"inputs\[0\]\.name must be a string"),
        ("inputs.0.shape.1", -1, r"inputs\[0\]\.shape\[1\] must be an integer from 0"),
        ("inputs.0.shape.1", 2.0, r"inputs\[0\]\.shape\[1\] must be an integer from 0"),
        ("inputs.0.shape", [1 << 40, 1 << 40], r"inputs\[0\]\.shape must be the shape of a tensor of at most"),
        ("inputs.0.shape", [1] * 70, r"inputs\[0\]\.shape must be a list of 0 to 32"),
        ("inputs.0.dtype", "object", r"inputs\[0\]\.dtype must be one of bool, "),
        ("inputs.0.dtype", [], r"inputs\[0\]\.dtype must be one of bool, "),
        ("inputs.0.dynamic_batch", 1, r"inputs\[0\]\.dynamic_batch must be true or false"),
        ("inputs.0.batch_axis", -1, r"inputs\[0\]\.batch_axis must be an integer from 0"),
        ("inputs.0.qparams.scale", 0.0, r"inputs\[0\]\.qparams\.scale must be positive"),
        ("inputs.0.qparams.scale", 1e-60, r"inputs\[0\]\.qparams\.scale must be positive and finite in its dtype"),
        ("inputs.0.qparams.scale", [0.5, 0.5], r"inputs\[0\]\.qparams must be per-tensor"),
        ("inputs.0.qparams.zero_point", 1 << 40, r"inputs\[0\]\.qparams\.zero_point must be an integer"),
        ("inputs.0.qparams.zero_point", 999, r"inputs\[0\]\.qparams\.zero_point must be int8"),
        ("inputs.0.qparams.axis", 1, r"inputs\[0\]\.qparams must be per-tensor"),
        ("inputs.0.qparams.dtype", "float32", r"inputs\[0\]\.qparams\.dtype must be one of int8"),
        ("states.0.zeros", False, "states.bin has"),
        ("states.0.zeros", 1, "true or false"),
        ("states.0.dtype", "V8", r"states\[0\]\.dtype"),
        ("notes", [1], r"notes\[0\] must be an object"),
        ("variants", [], "variants must be a list of 1 to 64"),
        ("variants.0.target.kind", "c", r"variants\[0\]\.target\.kind must be one of llvm, cuda"),
        ("variants.0.target.num-cores", "x", r"variants\[0\]\.target\.num-cores must be an integer"),
        ("variants.0.target", {"kind": "cuda"}, r"variants\[0\]\.target\.arch must be a GPU architecture"),
        ("variants.0.features", ["a", 1], r"variants\[0\]\.features\[1\] must be a string"),
        ("variants.0.fallback", [], r"variants\[0\]\.fallback must be a string"),
        ("variants.0.fallback", "control flow", r"variants\[0\]\.fallback must be empty, as there is a program"),
        ("variants.0.program", None, "weights0.bin is unknown"),
        ("variants.0.program.workspace", 1 << 60, r"variants\[0\]\.program\.workspace must be an integer"),
        ("variants.0.program.workspace", 8, r"variants\[0\]\.program\.stamps must be within 8 bytes"),
        ("variants.0.program.weights", 64, "weights0.bin has"),
        ("variants.0.program.tasks", 0, r"variants\[0\]\.program\.tasks must be an integer from 1"),
        ("variants.0.program.stamps", 4, r"variants\[0\]\.program\.stamps must be within"),
        ("variants.0.program.inputs", [], r"variants\[0\]\.program\.inputs must be a list of"),
        ("variants.0.program.inputs.0", 0, r"variants\[0\]\.program\.inputs\[0\] must be a multiple of"),
        ("variants.0.program.inputs.0", 1 << 30, r"variants\[0\]\.program\.inputs\[0\] must be a multiple of"),
        ("variants.0.program.outputs.0", [2, 0], r"variants\[0\]\.program\.outputs\[0\]\[0\] must be 0"),
        ("variants.0.program.outputs.0", [1, 1 << 30], r"variants\[0\]\.program\.outputs\[0\] must be a multiple of"),
        ("variants.0.program.outputs.0", [0], r"variants\[0\]\.program\.outputs\[0\] must be a list of 2 to 2"),
    ],
)
def test_fields(saved, path, field, value, message):
    description = description_of(saved)
    _set(description, field.split("."), value)
    describe(saved, path, description)
    with pytest.raises(ArtifactError, match=message) as caught:
        qnn_ext.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("2.macs", "many", r"kernels\[2\]\.macs must be an integer"),
        ("2.reason", 1, r"kernels\[2\]\.reason must be a string"),
        ("2.extra", 1, r"kernels\[2\] must be an object with only the fields symbol, "),
        ("0.reads.0", 0, r"kernels\[0\]\.reads\[0\] must be an integer from -3 to -1"),
        ("0.results.0.dtype", "x", r"kernels\[0\]\.results\[0\]\.dtype must be one of"),
        ("0.live_bytes", -1, r"kernels\[0\]\.live_bytes must be an integer from 0"),
        ("0", None, r"kernels\[0\] must be an object"),
    ],
)
def test_fields_of_kernels(saved, path, field, value, message, older):
    kernels = kernels_of(saved)
    _set(kernels, field.split("."), value)
    with pytest.raises(ArtifactError, match=message):
        _load_with_kernels(saved, path, kernels, older)


@pytest.mark.parametrize("older", [False, True])
def test_kernels_of_another_number(saved, path, older):
    with pytest.raises(ArtifactError, match=r"kernels must be a list of \d+ items, found \[\]"):
        _load_with_kernels(saved, path, [], older)


def test_kernels_are_read_when_they_are_looked_at(engine, saved, path):
    """To run a model takes none; a file that is wrong there runs."""
    for content in (b"{", b"3"):
        rewrite(saved, path, {KERNELS: content})
        loaded = qnn_ext.load(path)
        loaded.run([np.zeros(spec.shape, spec.dtype) for spec in loaded.inputs])
        with pytest.raises(ArtifactError, match=r"kernels0\.json"):
            loaded.kernels  # noqa: B018
    rewrite(saved, path, {KERNELS: None})
    with pytest.raises(ArtifactError, match=r"kernels0\.json is missing"):
        qnn_ext.load(path)
    loaded = qnn_ext.load(saved)
    assert loaded.kernels == engine.kernels and loaded.kernels[-1] == engine.kernels[-1]
    assert loaded.compiled[0].kernels == engine.kernels and loaded.compiled[0].kernels[:2] == engine.kernels[:2]


def test_older_files_have_kernels_in_the_description(engine, saved, path):
    assert _load_with_kernels(saved, path, kernels_of(saved), older=True).kernels == engine.kernels


def _load_with_kernels(saved: Path, path: Path, kernels, older: bool) -> qnn_ext.Engine:
    """The engine of a file with these kernels, which have been looked at."""
    if older:
        description = description_of(saved)
        description["variants"][0]["kernels"] = kernels
        rewrite(saved, path, {"qnn.json": json.dumps(description).encode(), KERNELS: None})
    else:
        rewrite(saved, path, {KERNELS: json.dumps(kernels).encode()})
    engine = qnn_ext.load(path)
    repr(engine)
    return engine


def _set(tree, keys: list[str], value) -> None:
    *above, last = [int(key) if key.isdigit() else key for key in keys]
    for key in above:
        tree = tree[key]
    tree[last] = value


def _paths(tree, path: tuple = ()) -> list[tuple]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(found for key, value in items for found in _paths(value, (*path, key)))]


@pytest.mark.parametrize("kernels", [False, True])
def test_every_field_is_needed(saved, path, kernels):
    """Leaving out any key of any object is reported with that key's name."""
    whole = kernels_of(saved) if kernels else description_of(saved)
    keys = {tuple(0 if isinstance(key, int) else key for key in found) for found in _paths(whole)}
    for keys_to in sorted(found for found in keys if found and isinstance(found[-1], str)):
        if keys_to[-2:-1] in (("target",), ("workload",), ("versions",)) and keys_to[-1] != "kind":
            continue  # names of others, any of which may be there
        if keys_to[-1] in (*LATER, "code", "zeros"):
            continue  # files from before they were recorded load too
        description = copy.deepcopy(whole)
        tree = description
        for key in keys_to[:-1]:
            tree = tree[key]
        del tree[keys_to[-1]]
        rewrite(saved, path, {KERNELS if kernels else "qnn.json": json.dumps(description).encode()})
        with pytest.raises(ArtifactError, match=rf"{keys_to[-1]} is missing|a target with a kind"):
            repr(qnn_ext.load(path))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b"{",
        b"3",
        b"\xff",
        b'{"source": NaN}',
        b'{"source": 1' + b"0" * 5000 + b"}",
        b'{"source": "a", "source": "b"}',
    ],
)
def test_description_that_is_no_json(saved, path, text):
    rewrite(saved, path, {"qnn.json": text})
    with pytest.raises(ArtifactError, match="damaged"):
        qnn_ext.load(path)


HOSTILE = [None, True, -1, 0, 1, 63, 1 << 31, 1 << 63, 10**400, 0.5, 1e308, "", "x", "\ud800", "object", [], {}, [[]]]


def test_altered_descriptions_raise_errors_of_ours(saved, path):
    """The checksums are valid, as in a file that was made this way on purpose; it is then loaded and inspected."""
    from qnn_ext.cli.inspect import _compiled_data

    rng, refused = random.Random(0), 0
    members = {"qnn.json": description_of(saved), KERNELS: kernels_of(saved)}
    for index in range(200):
        name = rng.choice(sorted(members))
        description = copy.deepcopy(members[name])
        positions = [found for found in _paths(description) if found]
        shallow = [found for found in positions if len(found) < 5]
        _set(description, [str(key) for key in rng.choice(shallow if index % 2 else positions)], rng.choice(HOSTILE))
        rewrite(saved, path, {name: json.dumps(description).encode()})
        try:
            _compiled_data(path, None)
            qnn_ext.load(path)
        except QnnError as error:
            refused += 1
            str(error).encode()
    assert refused > 100


def test_more_memory_than_there_is(saved, path):
    description = description_of(saved)
    description["variants"][0]["program"]["workspace"] = 1 << 42
    describe(saved, path, description)
    with pytest.raises(ArtifactError, match=r"takes 4398\.0 GB to run"):
        qnn_ext.load(path)


@pytest.mark.parametrize("change", [-64, 64, 1 << 20])
def test_memory_that_is_not_what_the_code_takes(saved, path, change):
    """A smaller workspace would be written beyond its end, and may be too small for what it is known to hold."""
    description = description_of(saved)
    program = description["variants"][0]["program"]
    description["variants"][0]["program"]["workspace"] += change
    describe(saved, path, description)
    with pytest.raises(ArtifactError, match=rf"needs {program['workspace'] - change} bytes of workspace|leaves room"):
        qnn_ext.load(path)


def test_more_memory_than_is_free(path):
    """Less than the machine has, more than this process may take: a product of 8192 x 32768 between two others."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8192, 1]) for name in "xy")
    nodes = [helper.make_node("MatMul", ["x", "a"], ["wide"]), helper.make_node("MatMul", ["wide", "b"], ["y"])]
    ones = np.ones(32768, np.float32)
    constants = [numpy_helper.from_array(ones.reshape(shape), name) for name, shape in (("a", (1, -1)), ("b", (-1, 1)))]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    engine = qnn_ext.build(qnn_ext.from_onnx(model), num_threads=1)
    engine.save(path)
    script = (
        "import resource, sys, qnn_ext; engine = qnn_ext.load(sys.argv[1], num_threads=1)\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (800 << 20, 800 << 20))\n"
        "try: engine.time(1, 1)\n"
        "except qnn_ext.QnnError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    wanted = engine.memory.feature_maps
    assert wanted >= 1 << 30
    assert f"feature maps take {wanted} bytes, which is more memory than is free here" in done.stdout, (
        done.stdout + done.stderr
    )


def test_what_the_code_does_not_take(tmp_path):
    """A description that is valid in itself, but of other code than what runs in the virtual machine."""
    mod = module([((4, 16), "float32")], lambda emit, x: [emit(products_so_far(x)), emit(relax.op.cumprod(x, 0))])
    qnn_ext.build(as_model(mod), num_threads=1).save(tmp_path / "products.qnn")
    whole = description_of(tmp_path / "products.qnn")
    for kind, value in (
        ("inputs", []),
        ("inputs", [{**whole["inputs"][0], "shape": [4, 17]}]),
        ("inputs", [{**whole["inputs"][0], "shape": [4]}]),
        ("inputs", [{**whole["inputs"][0], "dtype": "int32"}]),
        ("outputs", whole["outputs"] * 2),
        ("outputs", whole["outputs"][:1]),
    ):
        describe(tmp_path / "products.qnn", tmp_path / "m.qnn", {**whole, kind: value})
        engine = qnn_ext.load(tmp_path / "m.qnn", num_threads=1)
        inputs = [np.zeros(spec.shape, spec.dtype) for spec in engine.inputs]
        for use in (lambda: engine.run(inputs), lambda: engine.time(1, 1), lambda: engine.profile(1)):  # noqa: B023
            with pytest.raises(QnnError, match=r"cannot run|results instead of"):
                use()


def test_what_is_written_is_checked(engine, tmp_path, monkeypatch):
    variant = engine._built.variant
    variant = replace(variant, program=replace(variant.program, tasks=0))
    monkeypatch.setattr(engine, "_saved_with", [qnn_ext.running.artifact.Compiled(variant, None, None)])
    with pytest.raises(ArtifactError, match="tasks"):
        engine.save(tmp_path / "m.qnn")
    assert not list(tmp_path.iterdir())


def test_equal_models_make_equal_manifests(engine, saved, path):
    engine.save(path)
    assert description_of(path) == description_of(saved) and members_of(path).keys() == members_of(saved).keys()


def test_weights_that_pack_too_well_are_stored(tmp_path):
    """What unpacks to over a hundred times its size is refused as a bomb: the writer does not make such files."""
    from qnn_ext.files.container import Reader, Writer

    content = bytes(1 << 27)
    with open(tmp_path / "zeros", "wb") as file, Writer(file) as writer:
        writer.add_large("zeros", content)
        writer.finish(None)
    with open(tmp_path / "zeros", "rb") as file:
        reader = Reader(file)
        assert reader.names() == ["zeros"] and reader.size("zeros") == 1 << 27
        assert sum(map(len, reader.pieces("zeros"))) == 1 << 27


def test_pieces_are_small():
    """However little a member is packed to, and however it was packed, it comes in pieces of at most 256 kB."""
    from qnn_ext.files.container import Reader, Writer

    values = np.random.default_rng(0).integers(0, 3, 1 << 18, np.uint8).tobytes() + bytes(1 << 21)
    file = io.BytesIO()
    with Writer(file) as writer:
        writer.add("a", values)
        writer.add_small("b", values)
        writer.add_large("c", values)
        writer.finish(None)
    reader = Reader(file)
    assert len(zlib.compress(values)) < reader.size("c") == len(values)
    for name in "abc":
        pieces = list(reader.pieces(name))
        assert b"".join(pieces) == values and max(map(len, pieces)) <= 1 << 18
