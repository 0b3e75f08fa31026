"""`qnn-ext accuracy` and `qnn-ext memory`: tables, JSON, and one clear line for every mistake."""

import json

import numpy as np
import pytest
from PIL import Image

import qnn_ext
from tests.cases.bundled import DATA

MODEL = DATA / "digits_cnn_int8.tflite"


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Thirty digits as grey photos, in a folder for each, except the 8."""
    folder = tmp_path_factory.mktemp("photos")
    with np.load(DATA / "digits_test.npz") as stored:
        for index, (pixels, label) in enumerate(zip(stored["x"][:30], stored["y"][:30], strict=True)):
            if label != 8:
                place = folder / f"digit {label}"
                place.mkdir(exist_ok=True)
                Image.fromarray((pixels * 255.0 / 16).round().astype(np.uint8)).save(place / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "classes.txt"
    path.write_text("".join(f"digit {label}\n" for label in range(10)))
    return path


def test_photos_in_folders(cli, photos, classes):
    arguments = [MODEL, "--data", photos, "--classes", classes, "--threads", "1"]
    code, out, _ = cli("accuracy", *arguments, "--json", "--no-framework")
    data = json.loads(out)
    columns = {column["name"]: column for column in data["models"][0]["columns"]}
    assert code == 0 and data["models"][0]["samples"] == len(list(photos.rglob("*.png")))
    assert columns["int8"]["metrics"]["top-1"] >= 0.9
    assert columns["framework"]["missing"] == "no framework was given"
    assert data["memory"][0]["computed"] and data["memory"][0]["int8"]["weights"] > 1000


def test_tables(cli, photos, classes):
    code, out, _ = cli("accuracy", MODEL, "--data", photos, "--classes", classes, "--samples", "8", "--threads", "1")
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if line.startswith("│")]
    assert code == 0 and "digits_cnn_int8.tflite: 8 samples" in out
    assert lines[0][0] == "top-1" and lines[0][3].endswith(" %") and lines[0][2] == ""
    assert any(line[0] == "digits_cnn_int8.tflite" and line[2].startswith("≈") for line in lines)
    assert "float build: the model is quantized; its float version was not given" in out


def test_a_metric_and_a_compiled_file(cli, photos, tmp_path):
    (tmp_path / "mine.py").write_text("def spread(outputs, labels):\n    return outputs.max() - outputs.min()\n")
    compiled = tmp_path / "digits.qnn"
    qnn_ext.build(qnn_ext.from_tflite(MODEL), num_threads=1).save(compiled)
    code, out, _ = cli("accuracy", compiled, "--data", photos, "--metric", f"{tmp_path}/mine.py:spread", "--json")
    data = json.loads(out)
    assert code == 0 and data["memory"] == []
    assert 0.9 < data["models"][0]["columns"][2]["metrics"]["spread"] <= 1


def test_memory(cli):
    code, out, _ = cli("memory", MODEL, "--target", "x86-64,rpi4", "--threads", "1", "--json")
    splits = json.loads(out)["memory"]
    assert code == 0 and [split["target"] for split in splits] == ["x86-64", "cortex-a72"]
    engine = qnn_ext.build(qnn_ext.from_tflite(MODEL), "x86-64", 1)
    assert splits[0]["int8"]["weights"] == engine.memory.weights


def test_mistakes(fails, photos, tmp_path, classes):
    assert "has 9 sub-folders, but the model has 10 classes" in fails("accuracy", MODEL, "--data", photos)
    assert "no such file or folder of data" in fails("accuracy", MODEL, "--data", tmp_path / "nothing")
    assert "no such file" in fails("accuracy", MODEL, "--data", photos, "--labels", tmp_path / "nothing.txt")
    assert "is module:function" in fails("accuracy", MODEL, "--data", photos, "--metric", "accuracy")
    two = [MODEL, DATA / "digits_cnn_uint8.tflite"]
    assert "2 models were given" in fails("accuracy", *two, "--data", photos, "--float", MODEL)
    assert "2 models were given" in fails("memory", *two, "--float", MODEL)
    assert "takes one target" in fails("accuracy", MODEL, "--data", photos, "--target", "avx2,x86-64")
