"""Archives of language models whose packed weights are damaged: an error that names the weight or the node, or what
PyTorch computes of them."""

from __future__ import annotations

import io
import json
import logging
import zipfile

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.errors import InputError, ModelFormatError, QnnError
from qnn_ext.frontends.pytorch.exported import from_exported_program, load_program
from qnn_ext.interpreter import Interpreter

from .packed_networks import CONFIGS, ROOM, VOCABULARY, archive, decoder
from .test_archive import edited

STEPS = [(3, 0), (11, 5), (0, 2)]

SHAPES = {
    "fewer rows": lambda part: part[:-1].clone(),
    "more rows": lambda part: torch.cat([part, part]),
    "shorter rows": lambda part: part[..., :-1].clone(),
    "no rows": lambda part: part[:0].clone(),
    "one dimension": lambda part: part.reshape(-1).clone(),
    "another dimension": lambda part: part[None].clone(),
    "a scalar": lambda part: part.reshape(-1)[0].clone(),
}
OTHERS = {
    "not there": lambda part: None,
    "a number": lambda part: 3,
    "without values": lambda part: part.to("meta"),
    "sparse": lambda part: part.to_sparse(),
    "complex": lambda part: part.to(torch.complex64),
    "int64": lambda part: part.to(torch.int64),
    "bool": lambda part: part.to(torch.bool),
}
VALUES = {
    "the dtype's ends": lambda part: torch.full_like(part, -128 if part.dtype == torch.int8 else 3.4e38),
    "not a number": lambda part: torch.full_like(part, 127 if part.dtype == torch.int8 else float("nan")),
    "infinite": lambda part: torch.full_like(part, -127 if part.dtype == torch.int8 else float("inf")),
}


@pytest.fixture(scope="module", autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module", params=CONFIGS)
def content(request) -> bytes:
    return archive(decoder(CONFIGS[request.param]))


def damaged(content: bytes, change, part: str, weight: str = "key.weight") -> bytes:
    """The archive with one tensor of a weight replaced."""

    def changed(record: bytes) -> bytes:
        tensor = torch.load(io.BytesIO(record), weights_only=True)
        object.__setattr__(tensor, part, change(getattr(tensor, part)))
        buffer = io.BytesIO()
        torch.save(tensor, buffer)
        return buffer.getvalue()

    with zipfile.ZipFile(io.BytesIO(content)) as stored:
        config = json.loads(stored.read("archive/data/weights/model_weights_config.json"))["config"]
    return edited(content, f"data/weights/{config[weight]['path_name']}", changed)


def parts_of(content: bytes) -> list[str]:
    """The tensors that a weight consists of."""
    weight = load_program(content).state_dict["key.weight"]
    names = weight.__tensor_flatten__()[0]
    return [name for name in names if getattr(weight, name) is not None]


def by_pytorch(content: bytes) -> list[np.ndarray] | None:
    """None if PyTorch refuses it."""
    try:
        module = torch.export.load(io.BytesIO(content)).module()
        return [module(torch.tensor([token]), torch.tensor([place])).detach().numpy() for token, place in STEPS]
    except Exception:
        return None


def ours(content: bytes) -> list[np.ndarray]:
    runner = Interpreter(from_exported_program(load_program(content)))
    with np.errstate(all="ignore"):
        return [runner(np.array([token]), np.array([place])) for token, place in STEPS]


@pytest.mark.parametrize("kind", [SHAPES, OTHERS], ids=["shapes", "others"])
def test_parts_that_do_not_fit(content, kind):
    """Refused in words of this weight, or computed as PyTorch does."""
    refused = 0
    for part in parts_of(content):
        for name, change in kind.items():
            broken = damaged(content, change, part)
            try:
                found = ours(broken)
            except QnnError as error:
                message, refused = str(error), refused + 1
                assert "\n" not in message and ("weight 'key.weight'" in message or "node '" in message), message
                assert "rms_norm" not in message, "not its fault"
            else:
                expected = by_pytorch(broken)
                assert expected is not None, f"{part}, {name}: accepted, though PyTorch refuses it"
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=f"{part}, {name}")
    assert refused > len(kind)


def test_values_that_are_unusual(content):
    for part in parts_of(content):
        for name, change in VALUES.items():
            broken = damaged(content, change, part)
            try:
                found = ours(broken)
            except ModelFormatError as error:
                assert "must be finite" in str(error) and "affine" in str(error), (part, name, str(error))
            else:
                for one, other in zip(found, by_pytorch(broken), strict=True):
                    size = np.abs(other[np.isfinite(other)]).max(initial=1)
                    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * size, err_msg=f"{part}, {name}")


@pytest.mark.parametrize(
    "block", [[1, 12], [1, 0], [1, -16], [0, 16], [2, 16], [1, 2**40], [16], [1, 16, 1], []], ids=str
)
def test_groups_that_do_not_divide_the_rows(block):
    """Of the key's weight, (32, 32) with groups of 16."""
    program = decoder(CONFIGS["int4"])
    node = [node for node in program.graph.nodes if "dequantize_affine" in str(node.target)][1]
    node.args = (node.args[0], block, *node.args[2:])
    for source in (program, load_program(archive(program))):
        with pytest.raises(QnnError, match=r"node 'dequantize_affine_1' \(torchao\.dequantize_affine\.default\)"):
            from_exported_program(source)


def test_programs_that_need_no_decomposition():
    """Nothing but the weight itself is looked at before it is read."""
    from .test_torchao_packed import program_of

    program, _ = program_of(CONFIGS["int4"])
    weight = program.state_dict["layer.weight"]
    object.__setattr__(weight, "scale", weight.scale[:-1].clone())
    with pytest.raises(ModelFormatError, match=r"weight 'layer\.weight' \(Intx.*\) is damaged: Expected scale"):
        from_exported_program(program)


def test_positions_and_tokens_that_are_not_there(content):
    """The cache and the vocabulary end: InputError, and the cache stays as it is."""
    module = from_exported_program(load_program(content))
    for runner in (Interpreter(module), qnn_ext.build(module, num_threads=1)):
        runner(np.array([1]), np.array([ROOM - 1]))
        before = runner(np.array([2]), np.array([0]))
        for token, place in ((VOCABULARY, 0), (-VOCABULARY - 1, 0), (2**40, 0), (1, ROOM), (1, -ROOM - 1), (1, 2**62)):
            with pytest.raises(InputError):
                runner(np.array([token]), np.array([place]))
        np.testing.assert_array_equal(runner(np.array([2]), np.array([0])), before)
