"""Accuracy control for weights in groups: goals are kept with few bits, and what was measured is not measured again."""

import json
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.errors import AccuracyError, QuantizationError, QuantizationWarning
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.quantize import QConfig, control_accuracy, control_groups, quantize
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.control_groups import IN_FLOAT, _Layers
from qnn_ext.quantize.grouped.simulation import Simulation
from qnn_ext.quantize.trials import JOURNAL

from .networks import float_module
from .residual import residual_network
from .test_loops import network as recurrent

FOUR = QConfig(weight_only=True, nbit_weight=4, group_size=16)
DATA = list(np.random.default_rng(9).normal(size=(6, 2, 32)).astype(np.float32))
CHECKPOINT = Path(__file__).parents[2].parent / "shared" / "models" / "llm" / "stories260K.bin"


@pytest.fixture(autouse=True)
def layers_only(monkeypatch, request):
    """Searches try no settings and interpret their trials, but for tests that say otherwise in their names."""
    if "setting" not in request.node.name:
        monkeypatch.setattr(control_groups, "_SETTINGS", ())
    if "compiled" not in request.node.name:
        monkeypatch.setattr(qnn_ext.quantize.search, "compile_module", Interpreter)


def residual_layers(seed=5, scales=(1.0, 0.3, 2.0, 0.1), spread=1.0, outliers=1.0):
    """x ← x + s · tanh(x · W) for each s, all of the same size: layers matter as much as their factors.

    spread: how much larger a few weights are; outliers: the same for channels that the second layer reads
    """
    rng = np.random.default_rng(seed)

    def body(emit, x):
        for index, scale in enumerate(scales):
            weight = rng.normal(size=(32, 32)) / 6
            weight[rng.random(weight.shape) < 0.02] *= spread
            data = x
            if index == 1 and outliers != 1:
                data = emit(
                    relax.op.multiply(x, constant(np.where(np.arange(32) == 3, outliers, 1).astype(np.float32)))
                )
                weight[3] /= outliers
            y = emit(relax.op.tanh(emit(relax.op.matmul(data, constant(weight.astype(np.float32))))))
            x = emit(relax.op.add(x, emit(relax.op.multiply(y, constant(np.float32(scale))))))
        return x

    return float_module((2, 32), body)


@pytest.fixture(scope="module")
def module():
    return residual_layers()


def results(module, data=DATA) -> np.ndarray:
    return np.concatenate([Interpreter(module)(x) for x in data])


def sqnr(module, config, data=DATA) -> float:
    return fidelity(results(module, data), results(quantize(module, dataset=data, config=config), data)).sqnr


def search(module, config=FOUR, dataset=DATA, **goal):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QuantizationWarning)
        return control_accuracy(module, dataset=dataset, config=config, **goal)


def test_what_is_good_enough_is_left_alone_compiled(module):
    plain = sqnr(module, FOUR)
    found = search(module, min_sqnr=plain - 0.5)
    assert found.config == FOUR and len(found.report.trials) == 1 and found.report.noise == {}
    chosen = found.report.chosen
    assert (chosen.share, chosen.bits, chosen.compiled) == (1, 4, True)
    assert chosen.sqnr == pytest.approx(plain, abs=0.01)


@pytest.mark.parametrize("mode", [{"weight_only": True}, {"dynamic": True}])
def test_the_goal_is_kept_with_the_fewest_layers(module, mode):
    config = QConfig(**mode, nbit_weight=4, group_size=16)
    goal = sqnr(module, config) + 3
    found = search(module, config, min_sqnr=goal)
    chosen, raised = found.report.chosen, found.config.overrides
    assert found.report.in_groups and not chosen.in_float and not chosen.in_4_bits and chosen.bits > 4
    assert raised == {name: {"nbit_weight": 8} for name in chosen.in_8_bits} and 0 < len(raised) < 4
    assert sqnr(module, found.config) >= goal
    np.testing.assert_array_equal(
        results(quantize(module, dataset=DATA, config=found.config)), results(found.stages.result)
    )
    for name in raised:
        fewer = QConfig(**mode, nbit_weight=4, group_size=16, overrides={k: v for k, v in raised.items() if k != name})
        assert sqnr(module, fewer) < goal
    by_noise = sorted(found.report.noise, key=lambda name: -(found.report.noise[name][4] - found.report.noise[name][8]))
    assert set(raised) == set(by_noise[: len(raised)]), "in the order of what each costs"
    assert search(module, config, min_sqnr=goal).config == found.config, "deterministic"


def test_noise_is_that_of_one_layer_alone(module):
    """Σ (y − ŷ)² / Σ y² with the other layers in float, as quantize itself does it."""
    found = search(module, min_sqnr=sqnr(module, FOUR) + 1)
    names = list(found.report.noise)
    for name in names:
        for bits in (4, 8):
            others = {other: {"precision": "float32"} for other in names if other != name}
            alone = QConfig(weight_only=True, nbit_weight=bits, group_size=16, overrides=others)
            assert -10 * np.log10(found.report.noise[name][bits]) == pytest.approx(sqnr(module, alone, DATA), abs=0.05)


def test_layers_that_8_bits_do_not_help_stay_float():
    """8-bit rows of activations, one channel of which is a thousand times as large: the weights are not to blame."""
    module = residual_layers(outliers=1000.0)
    config = QConfig(dynamic=True, nbit_weight=8, group_size=16)
    goal = sqnr(module, config) + 15
    found = search(module, config, min_sqnr=goal)
    assert len(found.report.chosen.in_float) == 1 and not found.report.chosen.in_8_bits
    assert sqnr(module, found.config) >= goal
    with pytest.warns(QuantizationWarning, match=r"takes 25 % of the weights in float: see the report"):
        control_accuracy(module, dataset=DATA, config=config, min_sqnr=goal)


def test_from_2_bits_to_4(module):
    config = QConfig(weight_only=True, nbit_weight=2, group_size=16, weight_symmetric=False)
    goal = sqnr(module, config) + 4
    found = search(module, config, min_sqnr=goal)
    assert found.report.chosen.in_4_bits and sqnr(module, found.config) >= goal
    assert 2 < found.report.chosen.bits < 4.5


def test_settings_come_before_layers(module):
    """A few large weights waste the steps of their groups: clipping them costs no bits."""
    module = residual_layers(spread=6.0)
    plain = sqnr(module, FOUR)
    best = max(
        sqnr(module, QConfig(weight_only=True, nbit_weight=4, group_size=16, weight_scale=how))
        for how in ("mse", "hqq")
    )
    found = search(module, min_sqnr=(plain + best) / 2)
    assert plain < best and found.report.chosen.bits == 4 and not found.config.overrides
    assert found.config.weight_scale in ("mse", "hqq")


def test_settings_on_top_of_each_other_and_only_with_data(module):
    def tried(**data):
        with pytest.raises(AccuracyError) as caught:
            search(module, min_sqnr=400, **data)
        return {trial.setting.split(",")[-1].strip() for trial in caught.value.report.trials}

    assert {"smooth=awq", "weight_rounding=gptq", "weight_scale=mse"} <= tried()
    alone = tried(dataset=None, validation_data=DATA)
    assert "weight_scale=mse" in alone and not {"smooth=awq", "weight_rounding=gptq"} & alone
    assert search(module, dataset=None, validation_data=DATA, min_sqnr=1).report.chosen.setting == "as configured"


def test_overrides_of_the_user_stay(module):
    """Bits are added to what the configuration says of a layer, under its name and under a pattern."""
    names = list(Simulation(module, FOUR, None).layers)
    own = {names[2]: {"weight_symmetric": False}, "*": {"group_size": 8}, names[0]: {"nbit_weight": 8}}
    config = QConfig(weight_only=True, nbit_weight=4, overrides=own)
    found = search(module, config, min_sqnr=sqnr(module, config) + 6)
    assert found.config.overrides[names[2]] == {"weight_symmetric": False, "nbit_weight": 8}
    assert found.config.overrides["*"] == {"group_size": 8} and 8 in found.report.noise[names[0]]
    assert 4 not in found.report.noise[names[0]]


def test_a_metric(module):
    labels = results(module).argmax(1)

    def agreement(model) -> float:
        return float(np.mean(np.concatenate([model(x) for x in DATA]).argmax(1) == labels))

    found = search(module, QConfig(weight_only=True, nbit_weight=2), metric=agreement, max_drop=0.0)
    assert np.array_equal(results(found.stages.result).argmax(1), labels)
    assert found.report.reference == 1 and found.report.chosen.metric == 1 and found.report.chosen.bits > 2
    assert found.report.trials[0].metric < 1


def test_convolutions_and_loops(rng):
    """Layers that are no plain products: their weights are simulated and raised all the same."""
    images = list(rng.normal(size=(4, 1, 4, 6, 6)).astype(np.float32))
    rows = list(rng.normal(size=(4, 5, 8)).astype(np.float32))
    for network, data in ((residual_network(rng), images), (recurrent(rng), rows)):
        config = QConfig(weight_only=True, nbit_weight=4)
        goal = sqnr(network, config, data) + 4
        found = search(network, config, data, min_sqnr=goal)
        assert len(found.report.noise) == 3 and sqnr(network, found.config, data) >= goal
        assert all(noise[4] > noise[8] > 0 for noise in found.report.noise.values())


def test_the_path():
    """The step that removes most noise for its bits; a step may skip 8 bits; the last state is not all float."""
    layers = _Layers({"a": 4, "b": 4, "c": 8}, {"a": 10, "b": 100, "c": 10})
    noise = {"a": {4: 1.0, 8: 0.9}, "b": {4: 10.0, 8: 0.1}, "c": {8: 0.2}}
    path = layers.path(noise)
    assert path[0] == {"b": 8}
    assert path[-1]["a"] == path[-1]["c"] == IN_FLOAT and path[-1]["b"] == 8
    assert not any(state.get("a") == 8 for state in path), "8 bits hardly help it"
    assert all(
        sum(state.get(name, 0) != before.get(name, 0) for name in "abc") == 1 for before, state in pairwise(path)
    )
    assert layers.size(path[0]) == {"share": 1, "bits": pytest.approx((40 + 800 + 80) / 120)}
    assert layers.path({name: dict.fromkeys(found, 0.0) for name, found in noise.items()}) == []


def test_a_goal_out_of_reach_names_the_best(module):
    with pytest.raises(
        AccuracyError, match=r"SQNR of at least 400 dB; the best was .* dB, \d+\.\d\d bits a weight"
    ) as caught:
        search(module, min_sqnr=400)
    report = caught.value.report
    assert report.chosen is None and report.best.sqnr == max(trial.sqnr for trial in report.trials)
    assert report.best.in_float and set(report.noise) == set(Simulation(module, FOUR, None).layers)


def test_an_interrupted_search_goes_on(module, counted, tmp_path):
    goal = sqnr(module, FOUR) + 3
    expected = search(module, min_sqnr=goal)
    total, counted["count"] = counted["count"], 0
    for after in (3, total - 2):
        counted["after"] = after
        with pytest.raises(KeyboardInterrupt):
            search(module, min_sqnr=goal, work=tmp_path)
    counted["after"] = None
    found = search(module, min_sqnr=goal, work=tmp_path)
    assert counted["count"] == total, "nothing is measured twice"
    assert found.config == expected.config and found.report.noise == expected.report.noise
    figures = [(trial.setting, trial.sqnr, trial.bits) for trial in expected.report.trials]
    assert [(trial.setting, trial.sqnr, trial.bits) for trial in found.report.trials] == figures
    again = search(module, min_sqnr=goal, work=tmp_path)
    assert counted["count"] == total and all(trial.repeated for trial in again.report.trials)
    np.testing.assert_array_equal(results(again.stages.result), results(expected.stages.result))
    lines = (tmp_path / JOURNAL).read_text(encoding="utf-8").splitlines()
    assert len({json.loads(line)["key"] for line in lines}) == len(lines) == total


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": "int16", "min_sqnr": 3}, "layers with weights in groups get 8 bits, then float"),
        ({"dataset": None, "min_sqnr": 3}, "accuracy control needs data: give a dataset"),
        ({"min_sqnr": float("inf")}, "min_sqnr must be finite"),
        ({"metric": lambda model: "good", "max_drop": 1}, "metric must return a number"),
        ({"min_sqnr": 3, "sensitivity_samples": 0}, "of at least 1"),
        ({"min_sqnr": 3, "validation_data": [x[:, :5] for x in DATA]}, "shape"),
        ({"min_sqnr": 3, "config": QConfig(weight_only=True, overrides={"*": {"precision": "float32"}})}, "no product"),
        (
            {
                "min_sqnr": 3,
                "dataset": None,
                "validation_data": DATA,
                "config": QConfig(weight_only=True, weight_rounding="gptq"),
            },
            "weight_rounding='gptq' needs data",
        ),
    ],
)
def test_mistakes(module, arguments, message):
    with pytest.raises(QuantizationError, match=message):
        control_accuracy(module, **{"dataset": DATA, "config": FOUR, **arguments})


# ---- language models -------------------------------------------------------------------------------------------------


@pytest.fixture
def llama(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tutorials"))
    import llama

    return llama


def steps(texts):
    return [(np.array([[token]]), np.array([place])) for text in texts for place, token in enumerate(text)]


def exported(model):
    import torch

    return qnn_ext.from_pytorch(torch.export.export(model, (torch.ones(1, 1, dtype=torch.int64), torch.arange(1))))


def test_perplexity_of_a_small_llama_compiled(llama):
    from qnn_ext.generation import LanguageModel, perplexity

    sizes = llama.Config(width=16, hidden=24, layers=1, heads=4, kv_heads=2, vocabulary=32, length=24)
    module = exported(llama.random_llama(sizes))
    texts = [[3, 7, 1, 30, 12, 5, 9, 9], [31, 0, 4, 4]]

    def fluency(model) -> float:
        return -perplexity(LanguageModel(model), texts)

    others = {name: {"precision": "float32"} for name in ("*attention*", "*gate*", "*up*")}  # which saves time
    config = QConfig(
        weight_only=True, nbit_weight=2, group_size=8, embeddings=True, weight_symmetric=False, overrides=others
    )
    before, drop = perplexity(LanguageModel(qnn_ext.build(module, num_threads=1)), texts), 0.4
    found = search(module, config, steps(texts), metric=fluency, max_drop=drop, min_sqnr=12)
    after = perplexity(LanguageModel(qnn_ext.build(found.stages.result, num_threads=1)), texts)
    chosen = found.report.chosen
    assert after <= before + drop and chosen.metric == pytest.approx(-after) and chosen.sqnr >= 12
    assert found.report.reference == pytest.approx(-before) and 2 < chosen.bits < 8
    assert len(found.report.noise) == 3, "a product of a layer, the embedding and the head"
    assert found.report.trials[0].metric < -before - drop, "with 2 bits alone"


@pytest.mark.skipif(not CHECKPOINT.is_file(), reason="needs the checkpoint of TinyStories with 260,000 parameters")
def test_head_and_embedding_of_a_trained_model(llama, tmp_path):
    """4 bits for them alone: the head costs more than the embedding, and is the one that gets 8."""
    model = llama.read_llama2c(CHECKPOINT)
    model.blocks = model.blocks[:2]  # of five, which saves time
    module = exported(model)
    text = [1, 403, 407, 261, 378, 277, 336, 394]
    config = QConfig(weight_only=True, nbit_weight=4, embeddings=True, overrides={"blocks_*": {"precision": "float32"}})
    goal = {"validation_data": steps([text]), "work": tmp_path}
    both = search(module, config, steps([text]), min_sqnr=1, **goal).report.chosen.sqnr
    found = search(module, config, steps([text]), min_sqnr=both + 3, **goal)
    head, embedding = (next(name for name in found.report.noise if name.startswith(start)) for start in ("head", "emb"))
    noise = found.report.noise
    assert noise[head][4] > 1.5 * noise[embedding][4] and all(found[8] < found[4] / 50 for found in noise.values())
    assert found.report.chosen.in_8_bits == (head,) and found.report.chosen.sqnr >= both + 3
