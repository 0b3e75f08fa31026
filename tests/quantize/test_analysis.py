"""Error analysis: its figures are those of NumPy, and it finds the layer that was made bad."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.quantize.analysis import analyze, fidelity
from qnn_ext.quantize.annotate import annotate, sites
from qnn_ext.quantize.calibrate import calibrate
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.ranges import Range
from qnn_ext.quantize.realize import simulate
from tests.quantize.digits import calibration_images, network
from tests.quantize.networks import float_module, recurrent_module, run_sequence

CONFIG = QConfig(calibrate_mode="minmax")


def test_fidelity():
    x, y = np.array([3.0, 4.0]), np.array([3.0, 3.5])
    found = fidelity(x, y)
    assert found.sqnr == pytest.approx(20.0)  # 25 / 0.25
    assert found.cosine == pytest.approx(23 / (5 * np.hypot(3, 3.5)))
    assert found.largest == 0.5
    assert fidelity(x, x).sqnr == np.inf and fidelity(x, x).cosine == pytest.approx(1)
    assert fidelity(x * 0, y).sqnr == -np.inf


@pytest.fixture(scope="module")
def case():
    module = network("cnn")
    annotated = annotate(module, CONFIG)
    images = calibration_images(20)
    table = calibrate(annotated, images, CONFIG)
    return module, annotated, table, images, analyze(annotated, table, images, CONFIG)


def test_outputs_are_those_of_the_simulation(case):
    module, annotated, table, images, found = case
    exact = qnn_ext.build(module, num_threads=1)(images)
    simulated = qnn_ext.build(simulate(annotated, table, CONFIG), num_threads=1)(images)
    expected = fidelity(exact, simulated)
    assert found.outputs["logits"].sqnr == pytest.approx(expected.sqnr, abs=0.5)  # biases are not rounded here
    assert found.samples == 20


def test_states_go_on_from_the_batch_before_of_the_same_switches(rng):
    """As if the float and the simulated model had each run over the whole sequence, and every layer alone as well."""
    module = recurrent_module(rng)
    data = rng.normal(size=(8, 6)).astype(np.float32)
    annotated = annotate(module, CONFIG)
    table = calibrate(annotated, data, CONFIG)
    found = analyze(annotated, table, data, CONFIG)

    exact, simulated = (run_sequence(one, data) for one in (module, simulate(annotated, table, CONFIG)))
    assert found.outputs["y"].sqnr == pytest.approx(fidelity(exact, simulated).sqnr, abs=0.5)
    assert len(found.layers) == 3
    assert all(layer.alone.sqnr > found.outputs["y"].sqnr - 1 for layer in found.layers)


def test_outputs_are_known_before_each_layer_alone(case):
    _, annotated, table, images, _ = case
    told = []
    found = analyze(annotated, table, images[:2], CONFIG, progress=lambda stage, share: told.append((stage, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1
    assert len(told) == found.samples + len(found.layers)
    assert told[found.samples][0].startswith(f"logits {found.outputs['logits'].sqnr:.1f} dB; layer 1 of ")


def test_every_site_and_layer_is_there(case):
    _, annotated, _, _, found = case
    assert [site.site for site in found.sites] == [site.name for site in sites(annotated)]
    assert {layer.layer for layer in found.layers} == {site.layer for site in sites(annotated)}
    for site in found.sites:
        assert 20 < site.fidelity.sqnr < 70, "eight bits of a tensor that uses its range"
        assert site.saturated == 0, "minmax on the same data clips nothing"
        assert site.counts.sum() > 0 and np.all(np.diff(site.edges) > 0)
    assert all(layer.alone.sqnr > found.outputs["logits"].sqnr for layer in found.layers), (
        "one layer costs less than all"
    )


def test_the_bad_layer_is_found(case):
    _, annotated, table, images, _ = case
    victim = next(site for site in sites(annotated) if site.role == "input" and site.layer != sites(annotated)[0].layer)
    found_range = table[victim.name]
    clipped = {**table, victim.name: Range(found_range.low / 8, found_range.high / 8)}
    found = analyze(annotated, clipped, images[:2], CONFIG)
    report = next(site for site in found.sites if site.site == victim.name)
    assert report.saturated > 0.05 and report.fidelity.sqnr < 15
    readers = {layer.layer for layer in found.ranking if layer.alone.sqnr < 20}
    assert victim.layer in readers
    assert found.ranking[0].alone.sqnr == min(layer.alone.sqnr for layer in found.layers)


def test_saturation_is_counted_exactly():
    w = np.eye(4, dtype=np.float32)
    module = float_module((1, 4), lambda emit, x: emit(relax.op.matmul(x, relax.const(w))))
    annotated = annotate(module, CONFIG)
    table = {
        site.name: Range(-1.0, 1.0) if site.value is None else Range(-np.ones(4), np.ones(4))
        for site in sites(annotated)
    }
    data = np.array([[0.5, -0.5, 1.5, -3.0], [0.1, 0.2, 0.3, 9.0]], np.float32)
    found = analyze(annotated, table, data, CONFIG)
    assert next(site for site in found.sites if site.role == "input").saturated == 3 / 8
