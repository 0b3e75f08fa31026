"""Perplexity against PyTorch's cross entropy, and what it says of quantized models."""

from __future__ import annotations

import json

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import InputError
from qnn_ext.generation import LanguageModel, perplexity
from qnn_ext.quantize import QConfig, quantize
from tests.quantize.digits import DATA

from .test_generate import engines, llama, model  # noqa: F401 (fixtures)

torch = pytest.importorskip("torch")

TEXTS = [[3, 7, 1, 30, 12, 5, 9, 9], [2], [31, 0, 4]]


@torch.no_grad()
def by_pytorch(network, texts):
    losses = []
    for text in texts:
        logits = network(torch.tensor([text]), torch.arange(len(text)))[0]
        losses.append(
            torch.nn.functional.cross_entropy(
                logits[:-1].double(), torch.tensor(text[1:], dtype=torch.int64), reduction="none"
            )
        )
    return float(torch.cat(losses).mean().exp())


def test_equals_pytorch(model, engines):  # noqa: F811
    found = perplexity(LanguageModel(engines[1][0].clone()), TEXTS)
    assert found == pytest.approx(by_pytorch(model, TEXTS), rel=1e-5)


def test_a_uniform_model_has_the_size_of_its_vocabulary():
    class Uniform:
        def reset(self):
            pass

        def logits(self, tokens):
            return np.zeros(50, np.float32)

    assert perplexity(Uniform(), [[1, 2, 3]]) == pytest.approx(50)


@pytest.mark.parametrize(
    ("texts", "found"), [([], "at least two tokens"), ([[1]], "at least two tokens"), ([[1, 99]], "token 99 is beyond")]
)
def test_texts_that_cannot_be_measured(texts, found, engines):  # noqa: F811
    with pytest.raises(InputError, match=found):
        perplexity(LanguageModel(engines[1][0].clone()), texts)


def test_a_quantized_model_with_its_cache(model, engines):  # noqa: F811
    """Eight bits change the logits of a model by little, and two bits by much; calibration steps through the cache."""
    program = torch.export.export(model, (torch.ones(1, 1, dtype=torch.int64), torch.arange(1)))
    module = qnn_ext.from_pytorch(program)
    text = TEXTS[0]
    data = [(np.array([[token]]), np.array([place])) for place, token in enumerate(text)]
    exact = LanguageModel(engines[1][0].clone())
    errors = {}
    for bits in (8, 2):
        config = QConfig(weight_only=True, nbit_weight=bits, group_size=8, weight_rounding="gptq", embeddings=True)
        found = LanguageModel(qnn_ext.build(quantize(module, dataset=data, config=config), num_threads=1))
        assert np.isfinite(perplexity(found, TEXTS))
        exact.reset()
        found.reset()
        errors[bits] = np.abs(exact.logits(text) - found.logits(text)).max() / np.abs(exact.logits([1])).max()
    assert 0 < errors[8] < 0.05 < errors[2]


def test_the_command_shows_it_before_and_after(model, engines, cli, tmp_path):  # noqa: F811
    program = torch.export.export(model, (torch.ones(1, 1, dtype=torch.int64), torch.arange(1)))
    torch.export.save(program, tmp_path / "llama.pt2")
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(map(str, text)) for text in TEXTS))
    command = ["quantize", tmp_path / "llama.pt2", "--weight-only", "-o", tmp_path / "llama.qnn", "--threads", 1]
    code, out, error = cli(*command, "--perplexity", tmp_path / "texts.txt", "--json")
    assert code == 0, error
    found = json.loads(out)["perplexity"]
    assert found["before"] == pytest.approx(perplexity(LanguageModel(engines[1][0].clone()), TEXTS), rel=1e-5)
    assert found["after"] == pytest.approx(perplexity(LanguageModel(qnn_ext.load(tmp_path / "llama.qnn")), TEXTS))
    for text, message in (("a b", "each line must be tokens"), ("\n", "has no text")):
        (tmp_path / "texts.txt").write_text(text)
        code, _, error = cli(*command, "--perplexity", tmp_path / "texts.txt")
        assert code == 1 and message in error


def test_the_command_searches_for_a_perplexity(model, engines, cli, tmp_path):  # noqa: F811
    """--max-drop without a metric: by how much the perplexity may rise."""
    program = torch.export.export(model, (torch.ones(1, 1, dtype=torch.int64), torch.arange(1)))
    torch.export.save(program, tmp_path / "llama.pt2")
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(map(str, text)) for text in TEXTS))
    tokens, places = np.array(TEXTS[0]), np.arange(len(TEXTS[0]))
    names = [spec.name for spec in engines[1][0].inputs]
    np.savez(tmp_path / "tokens.npz", **{names[0]: tokens[:, None], names[1]: places})
    command = ["quantize", tmp_path / "llama.pt2", "-o", tmp_path / "llama.qnn", "--threads", 1]
    command += ["--weight-only", "--bits", 4, "--group-size", 8, "--set", "weight_scale=mse"]
    command += ["--set", "weight_rounding=gptq", "--set", "smooth=awq", "--max-drop", 0.5, "--skip", "blocks_1*"]
    given = ["--data", tmp_path / "tokens.npz", "--perplexity", tmp_path / "texts.txt"]
    code, out, error = cli(*command, *given, "--json")
    assert code == 0, error
    found = json.loads(out)
    search, shown = found["search"], found["perplexity"]
    assert search["goal"].startswith("metric of at least -") and search["reference"] == pytest.approx(-shown["before"])
    chosen = search["trials"][search["chosen"]]
    assert chosen["metric"] == pytest.approx(-shown["after"]) and shown["after"] <= shown["before"] + 0.5
    assert 4 <= chosen["bits"] < 32 and set(chosen) >= {"in_4_bits", "in_8_bits", "in_float"}
    code, out, error = cli(*command, *given)
    assert code == 0 and "bits a weight" in " ".join(out.split()) and "perplexity" in out, error
    for left_out, message in ((given[2:], "a search calibrates on data"), (given[:2], "--metric or --perplexity")):
        code, _, error = cli(*command, *left_out)
        assert code == 1 and message in error


def test_a_model_without_a_cache_has_no_perplexity(cli, tmp_path):
    digits = DATA / "digits_transformer_float32.onnx"
    (tmp_path / "texts.txt").write_text("1 2 3")
    command = ["quantize", digits, "--weight-only", "--data", DATA / "digits_calibration.npz", "--max-drop", 1]
    code, _, error = cli(*command, "--perplexity", tmp_path / "texts.txt", "-o", tmp_path / "x.qnn")
    assert code == 1 and "keep their cache in states; this model has no states" in error
