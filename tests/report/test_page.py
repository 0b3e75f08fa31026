"""The page as a file: whole, harmless, and with everything that was asked for."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pytest

import qnn_ext
from qnn_ext.report import Request, model_report, page
from qnn_ext.report.rendering import embedded, render
from tests.cases.bundled import DATA, module_of

MODEL = "digits_cnn_int8.tflite"


class Reader(HTMLParser):
    """The data of a page, and everything that it would load or leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.scripts: list[tuple[dict, str]] = []
        self._inside: dict | None = None
        self.title = ""
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self._tag = tag
        self.loads += [found[name] for name in ("src", "href") if found.get(name)]
        self._inside = found if tag == "script" else None

    def handle_endtag(self, tag):
        self._inside, self._tag = None, ""

    def handle_data(self, data):
        if self._inside is not None:
            self.scripts.append((self._inside, data))
        elif self._tag == "title":
            self.title += data

    @property
    def data(self):
        return json.loads(next(text for attributes, text in self.scripts if attributes.get("id") == "data"))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Reader:
    path = tmp_path_factory.mktemp("page") / "page.html"
    page(path, module_of(MODEL), title="Digits & more", target=["native", "rpi4"], num_threads=1)
    return Reader(path.read_text(encoding="utf-8"))


def test_the_page_loads_nothing(written):
    assert all(one.startswith(("#", "data:")) for one in written.loads)
    assert written.title == "Digits & more"


def test_every_target_and_both_graphs_are_in_it(written):
    (report,) = written.data["models"]
    assert len(report["variants"]) == 2
    for variant in report["variants"]:
        assert len(variant["layers"]) == len(variant["graph"]["nodes"]) - len(report["inputs"])
        assert variant["memory"]["feature_maps"] >= max(row["live_bytes"] for row in variant["layers"])
        assert all(row["seconds"] is None for row in variant["layers"]), "nothing is timed unless asked for"
    assert len(report["graph"]["nodes"]) > len(report["variants"][0]["graph"]["nodes"])


def test_names_in_a_model_cannot_leave_the_data():
    hostile = "</script><script>alert(1)</script><!--"
    assert "<" not in embedded({"name": hostile}) and json.loads(embedded({"name": hostile})) == {"name": hostile}
    assert json.loads(embedded([float("inf"), float("nan"), 1.5])) == [None, None, 1.5]
    report = model_report(module_of(MODEL), Request(), name=hostile)
    text = render([report], hostile)
    read = Reader(text)
    assert read.title == hostile and read.data["models"][0]["name"] == hostile
    assert "<script>alert" not in text


def test_a_loaded_engine_has_kernels_but_no_operators(tmp_path):
    qnn_ext.build(module_of(MODEL), num_threads=1).save(tmp_path / "m.qnn")
    found = model_report(qnn_ext.load(tmp_path / "m.qnn"), Request(profile=True))
    assert found["graph"] is None and found["variants"][0]["graph"]["edges"]
    variant = found["variants"][0]
    assert variant["latency"]["median"] > 0 and variant["machine"]["bandwidth"] > 0
    assert all(row["seconds"] >= 0 and row["bound"] in ("compute", "memory") for row in variant["layers"])


def test_a_float_model_with_data_has_errors_ranges_and_accuracy(tmp_path):
    module = module_of("digits_cnn_float32.onnx")
    with np.load(DATA / "digits_test.npz", allow_pickle=False) as test:
        images, labels = test["x"][:40], test["y"][:40]
    name, shape = module.inputs[0].name, module.inputs[0].shape[1:]
    np.savez(tmp_path / "d.npz", **{name: images.reshape(-1, *shape).astype(np.float32) / 16, "labels": labels})
    found = model_report(module, Request(data=tmp_path / "d.npz", samples=4), num_threads=1)
    error, right = found["error"], found["accuracy"]
    assert error["samples"] == 4 and error["outputs"][0]["sqnr"] > 10
    assert all(layer["alone"] is None or layer["alone"] > 0 for layer in error["layers"]) and error["layers"]
    for site in error["sites"]:
        assert sum(site["counts"]) > 0 and site["edges"][0] <= site["low"] < site["high"] <= site["edges"][1] + 1e-6
    top = next(row for row in right["rows"] if row["name"] == "top-1")
    assert right["samples"] == 40 and min(value for value in top["values"] if value is not None) > 0.8
    assert found["variants"][0]["totals"]["integer_share"] == 1


def test_a_quantized_model_against_its_float_version(tmp_path):
    floating = module_of("digits_cnn_float32.onnx")
    with np.load(DATA / "digits_test.npz", allow_pickle=False) as test:
        images = test["x"][:8].reshape(-1, *floating.inputs[0].shape[1:]).astype(np.float32) / 16
    found = model_report(module_of("digits_cnn_qdq.onnx"), Request(data=images, floating=floating, samples=8))
    assert found["error"]["outputs"][0]["sqnr"] > 10 and not found["error"]["sites"]
