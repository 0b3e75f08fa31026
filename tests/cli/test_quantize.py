"""`qnn-ext quantize` and `qnn-ext compare`: files written, figures shown, and one clear line for every mistake."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import qnn_ext
from qnn_ext.cli import main
from qnn_ext.quantize.table import CalibrationTable
from tests.quantize.digits import DATA, accuracy, held_out
from tests.report.test_page import Reader

MODEL = DATA / "digits_cnn_float32.onnx"
CALIBRATION = DATA / "digits_calibration.npz"

pytest.importorskip("onnx", reason="reading ONNX models needs the extra 'onnx'")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory) -> Path:
    """The folder with what one run of `quantize` wrote."""
    folder = tmp_path_factory.mktemp("quantized")
    with pytest.raises(SystemExit) as caught:
        main(
            f"quantize {MODEL} --data {CALIBRATION} --calibrate-mode minmax --table {folder}/ranges.json "
            f"--report {folder}/report --report-samples 2 -o {folder}/digits.qnn --threads 1".split()
        )
    assert caught.value.code == 0
    return folder


def test_what_quantize_writes(quantized):
    images, labels = held_out()
    engine = qnn_ext.load(quantized / "digits.qnn")
    assert accuracy(engine(images), labels) >= 446 / 450 - 0.005
    assert len(CalibrationTable.load(quantized / "ranges.json")) == 20
    report = (quantized / "report" / "report.md").read_text()
    assert "## Layers by what each costs alone" in report and "| image | input | uint8 |" in report
    pictures = sorted((quantized / "report" / "histograms").glob("*.png"))
    assert [f"histograms/{path.name}" in report for path in pictures] == [True] * 20
    assert (quantized / "report" / "report.html").read_text().count("<img") == 20
    page = (quantized / "report" / "page.html").read_text(encoding="utf-8")
    (described,) = Reader(page).data["models"]
    assert len(described["error"]["sites"]) == 20 and described["graph"]["nodes"]
    figures = json.loads((quantized / "report" / "report.json").read_text())
    assert figures["outputs"]["logits"]["sqnr"] > 30 and len(figures["layers"]) == len(figures["ranking"])


def test_a_table_in_place_of_data(quantized, cli, tmp_path):
    code, out, _ = cli(
        "quantize", MODEL, "--table", quantized / "ranges.json", "-o", tmp_path / "again.qnn", "--json", "--threads", 1
    )
    data = json.loads(out)
    assert code == 0 and data["sites"] == 20 and data["integer_share"] == 1 and data["in_float"] == []
    images, _ = held_out()
    one, two = qnn_ext.load(quantized / "digits.qnn"), qnn_ext.load(tmp_path / "again.qnn")
    np.testing.assert_array_equal(one(images[:20]), two(images[:20]))


def test_a_c_library(quantized, cli, tmp_path):
    """For a microcontroller, which has no other way to take a model."""
    options = ["--table", quantized / "ranges.json", "--emit", "c", "--target", "cortex-m4"]
    code, out, _ = cli("quantize", MODEL, *options, "--name", "digits", "-o", tmp_path / "digits", "--json")
    data = json.loads(out)
    assert code == 0 and data["integer_share"] == 1
    assert data["library"]["name"] == "digits"
    assert [one["target"]["mcpu"] for one in data["library"]["variants"]] == ["cortex-m4"]
    written = {path.name: path.stat().st_size for path in (tmp_path / "digits").iterdir()}
    assert {"digits.h", "libdigits.a"} <= written.keys()
    assert data["bytes"] == sum(written[name] for name in data["library"]["files"])
    for more, message in (
        ([], "name it with -o DIR"),
        (["-o", tmp_path, "--report", tmp_path / "r"], "leave out --emit c"),
    ):
        code, _, err = cli("quantize", MODEL, "--data", CALIBRATION, "--emit", "c", *more)
        assert code == 1 and message in err


def test_the_accuracy_is_told(cli, tmp_path):
    """Of what the integers compute, without a report or a goal."""
    arguments = ["--data", CALIBRATION, "--calibrate-mode", "minmax", "-o", tmp_path / "digits.qnn", "--threads", 1]
    code, out, _ = cli("quantize", MODEL, *arguments)
    assert code == 0 and "MAC in integers, 100 % in 8 bits" in out
    assert re.search(r"logits: \d\d\.\d dB, cosine 0\.99.*\nmeasured on 64 of the batches", out)
    found = json.loads(cli("quantize", MODEL, *arguments, "--json")[1])
    assert found["accuracy"]["outputs"]["logits"]["sqnr"] > 30 and found["share_in_8_bits"] == 1
    engine, images = qnn_ext.load(tmp_path / "digits.qnn"), np.load(CALIBRATION)["image"][:64]
    exact = qnn_ext.build(qnn_ext.from_onnx(MODEL), num_threads=1)(images)
    assert found["accuracy"]["outputs"]["logits"]["largest"] == np.abs(exact - engine(images)).max()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("as_json", [True, False])
def test_a_required_accuracy(as_json, cli, tmp_path):
    arguments = ["--data", CALIBRATION, "--min-sqnr", 30, "--work", tmp_path / "trials", "--threads", 1]
    (tmp_path / "task.py").write_text("def score(model):\n    model.reset_state()\n    return 0.5\n")
    arguments += ["--metric", tmp_path / "task.py:score", "--max-drop", 0, "--validation", CALIBRATION]
    arguments += ["--drop-type", "relative"]
    output = ["-o", tmp_path / "digits.qnn", *(["--json"] if as_json else [])]
    code, out, _ = cli("quantize", MODEL, *arguments, *output)
    assert code == 0 and (tmp_path / "trials" / "trials.jsonl").exists()
    if not as_json:
        assert "tried, for SQNR of at least 30 dB" in out and "integers, chosen" in " ".join(out.split())
        return
    search = json.loads(out)["search"]
    chosen = search["trials"][search["chosen"]]
    assert chosen["compiled"] and chosen["sqnr"] >= 30 and chosen["share"] == 1 and chosen["metric"] == 0.5
    images, labels = held_out()
    assert accuracy(qnn_ext.load(tmp_path / "digits.qnn")(images), labels) >= 446 / 450 - 0.005


def test_compare(quantized, cli):
    code, out, _ = cli("compare", MODEL, quantized / "digits.qnn", "--data", CALIBRATION, "--samples", 8, "--json")
    found = json.loads(out)
    assert code == 0 and found["samples"] == 8 and found["tensors"] == {}
    logits = found["outputs"]["logits"]
    assert 30 < logits["fidelity"]["sqnr"] < 50 and logits["same_answer"] == 1 and logits["equal"] < 0.5
    code, out, _ = cli("compare", quantized / "digits.qnn", quantized / "digits.qnn", "--samples", 2)
    assert code == 0 and "exact" in out and "random values" in out


def test_compare_verifies(quantized, cli, fails, tmp_path):
    """Every compiled file of the two must be signed; a model file cannot be."""
    private = Ed25519PrivateKey.generate()
    key = tmp_path / "key.pem"
    key.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    signed = tmp_path / "signed.qnn"
    qnn_ext.build(qnn_ext.from_onnx(DATA / "digits_cnn_qdq.onnx"), num_threads=1).save(signed, sign=private)
    assert cli("compare", DATA / "digits_cnn_qdq.onnx", signed, "--samples", 1, "--verify", key)[0] == 0
    assert "not signed" in fails("compare", signed, quantized / "digits.qnn", "--samples", 1, "--verify", key)
    assert "leave out --verify" in fails("compare", MODEL, MODEL, "--samples", 1, "--verify", key)


def test_limits_of_what_is_built(fails, tmp_path):
    """--limit reaches what is compiled, calibration's float model too."""
    qdq, output, limit = DATA / "digits_cnn_qdq.onnx", tmp_path / "x.qnn", ("--limit", "workspace=256")
    assert "--limit workspace=" in fails("compile", qdq, "-o", output, *limit)
    assert "--limit workspace=" in fails("quantize", MODEL, "--data", CALIBRATION, "-o", output, *limit)
    assert "--limit workspace=" in fails("compare", qdq, qdq, "--samples", 1, *limit)
    assert not output.exists()


def test_mistakes(fails, tmp_path):
    compiled = tmp_path / "x.qnn"
    assert "give --data" in fails("quantize", MODEL, "--report", tmp_path / "r")
    assert "no such calibration table" in fails("quantize", MODEL, "--table", tmp_path / "none.json")
    assert "--dynamic" in fails("quantize", MODEL, "--dynamic", "--table", tmp_path / "t.json")
    assert "no such data set" in fails("quantize", MODEL, "--data", tmp_path / "none.npz", "-o", compiled)
    assert "give --min-sqnr" in fails("quantize", MODEL, "--data", CALIBRATION, "--work", tmp_path / "w")
    assert "a search calibrates on data" in fails("quantize", MODEL, "--min-sqnr", 30)
    given = ["quantize", MODEL, "--data", CALIBRATION]
    assert "belong together" in fails(*given, "--metric", "task:score")
    assert "--drop-type says what --max-drop is" in fails(*given, "--drop-type", "relative")
    assert "--validation, --keep and --work are for a search" in fails(*given, "--validation", CALIBRATION)
    assert "cannot be imported" in fails(*given, "--metric", tmp_path / "none.py:score", "--max-drop", 1)
    assert "nbit_weight must be" in fails("quantize", MODEL, "--set", "nbit_weight=40")
    assert "matches no layer" in fails("quantize", MODEL, "--data", CALIBRATION, "--skip", "nothing*")
    assert "already quantized" in fails("quantize", DATA / "digits_cnn_qdq.onnx", "--data", CALIBRATION)
    assert "inputs do not match" in fails("compare", MODEL, DATA / "digits_cnn_float32.tflite", "--samples", 1)
    assert not compiled.exists()


@pytest.mark.parametrize("setting", ["no_field=1", "nbit_weight"])
def test_settings_that_are_none(setting, cli):
    code, _, err = cli("quantize", MODEL, "--set", setting)
    assert code == 2 and "--set" in err


def test_weights_in_groups(cli, tmp_path):
    """Weight-only and dynamic: what is shown, and the results of the file."""
    model = DATA / "digits_transformer_float32.onnx"
    images, labels = held_out()
    for index, flags in enumerate(
        [["--weight-only", "--bits", 4, "--group-size", 16], ["--dynamic", "--group-size", 32]]
    ):
        path = tmp_path / f"{index}.qnn"
        code, out, error = cli("quantize", model, *flags, "-o", path, "--threads", 1)
        assert code == 0, error
        assert "weights " in out and " → " in out.splitlines()[1] and "blockwise" not in out
        assert accuracy(qnn_ext.load(path)(images), labels) >= 0.97
    code, out, error = cli("quantize", model, "--embeddings", "-o", tmp_path / "x.qnn")
    assert code == 1 and "embeddings is for weights in groups: give weight_only=True" in error
