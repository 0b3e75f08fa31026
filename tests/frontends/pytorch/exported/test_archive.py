"""Reading .pt2 files: damage is reported as ours, and nothing in a file is executed."""

import io
import json
import operator
import pickle
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

from qnn_ext import Interpreter
from qnn_ext.errors import ModelFormatError, QnnError, UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch
from qnn_ext.frontends.pytorch.exported import from_exported_program, load_program
from qnn_ext.frontends.pytorch.exported.constants import _check_number

CONFIG = "data/weights/model_weights_config.json"
MODEL = "models/model.json"


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.dense(x))


@pytest.fixture(scope="module")
def content() -> bytes:
    torch.manual_seed(0)
    dim = torch.export.Dim("n", min=2, max=64)
    program = torch.export.export(Layer(), (torch.ones(5, 4),), dynamic_shapes=({0: dim},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def edited(content: bytes, record: str, edit) -> bytes:
    """The archive with one record's bytes replaced by edit(bytes); None removes it, a new name adds it."""
    buffer, found = io.BytesIO(), False
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, "w") as target:
        folder = source.namelist()[0].split("/")[0]
        for info in source.infolist():
            data = source.read(info)
            if info.filename == f"{folder}/{record}":
                data, found = edit(data), True
            if data is not None:
                target.writestr(info.filename, data)
        if not found:
            target.writestr(f"{folder}/{record}", edit(b""))
    return buffer.getvalue()


def edited_json(content: bytes, record: str, edit) -> bytes:
    """The archive with the JSON of one record changed in place."""

    def change(data: bytes) -> bytes:
        value = json.loads(data)
        edit(value)
        return json.dumps(value).encode()

    return edited(content, record, change)


class Bomb:
    """Unpickled, it would set a flag."""

    exploded = False

    def __reduce__(self):
        return (explode, ())


def explode() -> torch.Tensor:
    Bomb.exploded = True
    return torch.ones(3, 4)


@pytest.fixture(autouse=True)
def nothing_explodes():
    Bomb.exploded = False
    yield
    assert not Bomb.exploded


def test_a_sound_file(content, tmp_path):
    (tmp_path / "m.pt2").write_bytes(content)
    for source in (content, tmp_path / "m.pt2", str(tmp_path / "m.pt2")):
        module = from_exported_program(load_program(source), shapes={"x": (3, 4)})
        assert Interpreter(module)(np.ones((3, 4), np.float32)).shape == (3, 3)


def test_sample_inputs_are_not_opened(content):
    load_program(edited(content, "data/sample_inputs/model.pt", lambda _: pickle.dumps(Bomb())))
    load_program(edited(content, "data/sample_inputs/model.pt", lambda _: None))


def test_a_pickled_weight_must_be_a_tensor(content):
    def use_pickle(config):
        config["config"]["dense.weight"]["use_pickle"] = True

    buffer = io.BytesIO()
    torch.save(Bomb(), buffer)
    bomb = edited(edited_json(content, CONFIG, use_pickle), "data/weights/weight_0", lambda _: buffer.getvalue())
    with pytest.raises(ModelFormatError, match=r"pickle of 'dense\.weight' refers to [\w.]+\.explode, which"):
        load_program(bomb)
    damaged = edited(edited_json(content, CONFIG, use_pickle), "data/weights/weight_0", lambda _: b"\x80\x02}q")
    with pytest.raises(ModelFormatError, match=r"dense\.weight.*damaged"):
        load_program(damaged)


@pytest.mark.parametrize("name", ["custom_obj_0", "opaque_obj_0"])
def test_objects_are_refused(content, name):
    def refer(config):
        config["config"]["thing"] = {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}

    changed = edited_json(content, "data/constants/model_constants_config.json", refer)
    changed = edited(changed, f"data/constants/{name}", lambda _: pickle.dumps(Bomb()))
    with pytest.raises(UnsupportedOperatorError, match="thing"):
        load_program(changed)


def test_the_legacy_weights_pickle(content):
    buffer = io.BytesIO()
    torch.save({"dense.weight": Bomb()}, buffer)
    with pytest.raises(ModelFormatError):
        load_program(edited(content, "data/weights/model.pt", lambda _: buffer.getvalue()))


EXPRESSIONS = [
    "__import__('os').system('true')",
    "exec('1')",
    "(lambda: 1)()",
    "[1 for _ in range(3)]",
    "s0.__class__",
    "Pow(9, Pow(9, 9))",
    "9**9**9**9",
    "'a'",
    "Symbol('__import__(1)')",
    "Pow(Pow(Symbol('s0'), Integer(8)), Integer(8))",
    "1 <<  99999",
    "s0 +",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_shape_expressions_are_arithmetic(content, text):
    def replace(value):
        if isinstance(value, dict):
            if "expr_str" in value:
                value["expr_str"] = text
            for item in value.values():
                replace(item)
        elif isinstance(value, list):
            for item in value:
                replace(item)

    with pytest.raises(ModelFormatError, match="expression"):
        load_program(edited_json(content, MODEL, replace))


@pytest.mark.parametrize("target", ["torch.hub.load", "os.system", "torch.ops.load_library", "_operator.a.b", 7])
def test_targets_are_operators(content, target):
    def replace(model):
        model["graph_module"]["graph"]["nodes"][-1]["target"] = target

    with pytest.raises(UnsupportedOperatorError, match="calls"):
        load_program(edited_json(content, MODEL, replace))


@pytest.mark.parametrize("target", ["torch.ops.aten.from_file.default", "torch.ops.nothing.here.default"])
def test_operators_without_converter_never_run(content, target):
    def replace(model):
        model["graph_module"]["graph"]["nodes"][-1]["target"] = target

    with pytest.raises(QnnError):
        from_exported_program(load_program(edited_json(content, MODEL, replace)), shapes={"x": (3, 4)})


class Quotient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("least", torch.full((2,), -(2**31), dtype=torch.int32))
        self.register_buffer("divisor", torch.full((2,), -1, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.div(self.least, self.divisor, rounding_mode="trunc")


def test_a_quotient_that_ends_the_process():
    program = torch.export.export(Quotient(), (torch.ones(2),))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    for source in (program, buffer.getvalue()):
        with pytest.raises(ModelFormatError, match=r"div.*-2147483648 by −1, which overflows"):
            from_pytorch(source)


@pytest.mark.parametrize(("function", "args"), [(operator.pow, (9, 10**9)), (operator.lshift, (1, 10**12))])
def test_integers_of_absurdly_many_digits(function, args):
    with pytest.raises(ModelFormatError, match="256 bits"):
        _check_number(function, args)
    _check_number(function, (2, 60))


def test_weights_outside_their_record(content):
    def grow(config):
        config["config"]["dense.weight"]["tensor_meta"]["sizes"][0]["as_int"] = 10**6

    with pytest.raises(ModelFormatError, match=r"dense\.weight"):
        load_program(edited_json(content, CONFIG, grow))


@pytest.mark.parametrize("record", [MODEL, CONFIG, "data/weights/weight_0"])
@pytest.mark.parametrize(
    "edit", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"{}", lambda _: None]
)
def test_damaged_records(content, record, edit):
    with pytest.raises(ModelFormatError):
        load_program(edited(content, record, edit))


def test_truncated_and_flipped_files(content):
    for length in range(0, len(content), len(content) // 40):
        with pytest.raises(ModelFormatError):
            load_program(content[:length])
    generator = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(content)
        damaged[generator.integers(len(content))] ^= 1 << generator.integers(8)
        with suppress(QnnError):
            from_exported_program(load_program(bytes(damaged)), shapes={"x": (3, 4)})


def test_senseless_values(content):
    """Every number and string of the program replaced in turn: one of our errors, or a module."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        model = json.loads(archive.read(next(name for name in archive.namelist() if name.endswith(MODEL))))
    places = list(_leaves(model, ()))
    generator = np.random.default_rng(1)
    for index in generator.choice(len(places), 60, replace=False):
        changed = json.loads(json.dumps(model))
        *path, last = places[index]
        target = changed
        for key in path:
            target = target[key]
        target[last] = [-1, "x", None, 2**40, []][generator.integers(5)]
        with suppress(QnnError):
            program = load_program(edited(content, MODEL, lambda _, value=changed: json.dumps(value).encode()))
            from_exported_program(program, shapes={"x": (3, 4)})


def _leaves(value, path):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(item, (dict, list)):
            yield from _leaves(item, (*path, key))
        else:
            yield (*path, key)


def test_not_a_program():
    with pytest.raises(ModelFormatError, match="zip"):
        load_program(b"nothing of the kind")
    with pytest.raises(ModelFormatError, match="no such file"):
        load_program("/nowhere/model.pt2")
    with pytest.raises(ModelFormatError, match="ExportedProgram"):
        from_exported_program(Layer())
