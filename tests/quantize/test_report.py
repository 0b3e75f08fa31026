"""The report: every figure is in it, names are escaped, and it works without matplotlib."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from qnn_ext.quantize.analysis import Analysis, Fidelity, LayerReport, SiteReport
from qnn_ext.quantize.report import decibel, to_json, write_report
from qnn_ext.quantize.trials import SearchReport, Trial

GOOD, EXACT = Fidelity(36.25, 0.9999, 0.125), Fidelity(float("inf"), 1.0, 0.0)


@pytest.fixture
def analysis():
    counts, edges = np.array([5, 0, 100, 1]), np.linspace(-1, 3, 5)
    sites = (
        SiteReport("a<b>|c", "conv", "input", "uint8", 8, 0.0, 2.0, GOOD, 0.125, counts, edges),
        SiteReport("conv.weight", "conv", "weight", "int8", 4, -1.0, 1.0, EXACT, 0.0, counts, edges),
    )
    layers = (
        LayerReport("conv", "nn.conv2d", GOOD, Fidelity(50.0, 1.0, 0.1)),
        LayerReport("dense", "nn.dense", GOOD, Fidelity(20.0, 0.99, 0.5)),
    )
    return Analysis(sites, layers, {"logits": GOOD}, 7)


def test_files(analysis, tmp_path):
    pytest.importorskip("matplotlib", reason="histograms need the extra 'bench'")
    written = write_report(analysis, tmp_path / "new" / "folder", "Quantization of x", ["QConfig()"])
    assert [path.name for path in written] == ["report.md", "report.html", "report.json", "000.png", "001.png"]
    text = written[0].read_text()
    assert text.startswith("# Quantization of x\n\nQConfig()\n") and "on 7 batches" in text
    assert "| logits | 36.2 dB | 0.999900 | 0.125 |" in text
    assert text.index("| 1 | dense | nn.dense | 20.0 dB |") < text.index("| 2 | conv | nn.conv2d | 50.0 dB |")
    assert "| a<b>\\|c | input | uint8 | 0 … 2 | 36.2 dB | 0.999900 | 12.5 % | ![](histograms/000.png) |" in text
    assert "| conv.weight | weight | int8, 4 bits | -1 … 1 | exact | 1.000000 | 0 % |" in text
    page = written[1].read_text()
    assert "a&lt;b&gt;|c" in page and "a<b>" not in page
    assert all(Image.open(path).size[0] > 300 for path in written[3:])


def test_a_search(analysis, tmp_path):
    trials = [
        Trial("as configured", (), (), 1.0, 25.0, None, 1.25, False, False),
        Trial("equalize, 1 layer in 16 bits", ("conv",), (), 0.95, np.inf, 0.75, 2.0, True, True, True),
    ]
    search = SearchReport("SQNR of at least 30 dB", None, trials, trials[1])
    text = write_report(analysis, tmp_path, "Quantization of x", search=search)[0].read_text()
    assert "What was tried to reach: SQNR of at least 30 dB." in text
    assert "| as configured | 100.0 % | 0 | 0 | 25.0 dB |  | 1.2 s | simulation |" in text
    assert "| equalize, 1 layer in 16 bits | 95.0 % | 1 | 0 | exact | 0.75 | earlier | integers, chosen |" in text
    stored = json.loads((tmp_path / "report.json").read_text())["search"]
    assert stored["chosen"] == 1 and stored["trials"][1]["in_16_bits"] == ["conv"]
    assert stored["trials"][1]["sqnr"] is None and stored["trials"][0]["sqnr"] == 25.0


def test_a_search_with_weights_in_groups(analysis, tmp_path):
    layers = {"in_8_bits": ("dense",), "bits": 4.5}
    trials = [
        Trial("as configured", (), (), 1.0, 25.0, -3.5, 1.25, True, False, bits=4.0),
        Trial("1 layer in 8 bits, 1 layer in float", (), ("conv",), 0.9, 31.0, -3.25, 2.0, True, True, **layers),
    ]
    search = SearchReport("metric of at least -3 − 0.3", -3.0, trials, trials[1], {"dense": {4: 1e-3, 8: 4e-6}})
    text = write_report(analysis, tmp_path, "Quantization of x", search=search)[0].read_text()
    assert "| setting | bits a weight | in 4 bits | in 8 bits | in float | SQNR |" in text
    assert "| as configured | 4.00 | 0 | 0 | 0 | 25.0 dB | -3.5 | 1.2 s | integers |" in text
    assert "| 4.50 | 0 | 1 | 1 | 31.0 dB | -3.25 | 2.0 s | integers, chosen |" in text
    stored = json.loads((tmp_path / "report.json").read_text())["search"]
    assert stored["trials"][1]["in_8_bits"] == ["dense"] and stored["noise"] == {"dense": {"4": 1e-3, "8": 4e-6}}
    assert search.best is trials[1] and search.best.summary.endswith("31.0 dB, metric -3.25, 4.50 bits a weight")


def test_json(analysis):
    found = json.loads(json.dumps(to_json(analysis), allow_nan=False))
    assert found["ranking"] == ["dense", "conv"] and found["samples"] == 7
    assert found["sites"][1]["fidelity"]["sqnr"] is None, "infinite: JSON has no such number"
    assert "counts" not in found["sites"][0]


def test_without_matplotlib(analysis, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    written = write_report(analysis, tmp_path, "x")
    assert [path.name for path in written] == ["report.md", "report.html", "report.json"]
    assert "matplotlib is not installed" in written[0].read_text() and "histograms/" not in written[0].read_text()


def test_decibel():
    assert decibel(float("inf")) == "exact" and decibel(-3.14159) == "-3.1 dB"


def test_the_best_trial_is_none_that_its_integers_refuted():
    figures = {"in_16_bits": (), "in_float": (), "share": 1.0, "metric": None, "seconds": 1.0}
    simulated = Trial("as configured", sqnr=np.inf, compiled=False, reached=True, **figures)
    integers = replace(simulated, sqnr=15.0, compiled=True, reached=False)
    other = replace(simulated, setting="equalize", sqnr=12.0, reached=False)
    assert SearchReport("SQNR of at least 20 dB", None, [simulated, integers, other]).best is integers
