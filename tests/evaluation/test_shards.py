"""Accuracy on shards: every figure is that of the data in one piece, however the shards are mapped."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import InputError
from qnn_ext.evaluation import frameworks
from qnn_ext.quantize import QConfig, Shards
from tests.cases.bundled import DATA, module_of
from tests.evaluation.test_comparison import FIRST, LABELS
from tests.quantize.test_shards import over_wire

PARTS = [slice(0, 1), slice(1, 25), slice(25, 60)]
IMAGES = [(image, label) for image, label in zip(FIRST, LABELS, strict=True)]


def backwards(function, items):
    """A map in this process, with the last shard first."""
    return map(function, items[::-1])


def labelled(folder):
    """Shards as files with labels."""
    paths = [folder / f"{part.start}.npz" for part in PARTS]
    for path, part in zip(paths, PARTS, strict=True):
        np.savez(path, image=FIRST[part], labels=LABELS[part])
    return paths


@pytest.fixture(scope="module")
def engine():
    return qnn_ext.build(
        module_of("digits_cnn_float32.onnx"),
        num_threads=1,
        qconfig=QConfig(calibrate_mode="minmax", nbit_input=3, nbit_weight=3),  # which makes mistakes
        dataset=FIRST[:20],
    )


def figures(found):
    return found.samples, [(one.name, one.metrics, one.agreement, one.missing) for one in found.columns]


@pytest.mark.parametrize("mapped", [None, over_wire, backwards])
def test_figures_are_those_of_one_piece(engine, mapped, tmp_path):
    whole = figures(qnn_ext.accuracy(engine, IMAGES))
    assert 0.1 < whole[1][2][1]["top-1"] < 1
    assert figures(qnn_ext.accuracy(engine, Shards([IMAGES[part] for part in PARTS], mapped))) == whole
    assert figures(qnn_ext.accuracy(engine, Shards(labelled(tmp_path), mapped))) == whole


def test_agreement_with_a_framework(engine):
    pytest.importorskip("onnxruntime")
    runtime = frameworks.onnx_runtime(DATA / "digits_cnn_float32.onnx")
    whole = figures(qnn_ext.accuracy(engine, IMAGES, framework=runtime))
    shards = Shards([IMAGES[part] for part in PARTS], backwards)
    found = qnn_ext.accuracy(engine, shards, framework=runtime)
    assert figures(found) == whole
    assert 0 < found["int8"].agreement.same < 1


def test_a_float_model_is_quantized_on_the_first_samples():
    model, config = module_of("digits_cnn_float32.onnx"), QConfig(calibrate_mode="mse")
    options = {"calibrate": 30, "qconfig": config, "num_threads": 1}
    whole = qnn_ext.accuracy(model, IMAGES, **options)
    found = qnn_ext.accuracy(model, Shards([IMAGES[part] for part in PARTS], backwards), **options)
    assert figures(found) == figures(whole) and found.calibrated == whole.calibrated
    assert np.array_equal(found.engines["int8"](FIRST), whole.engines["int8"](FIRST))


def test_a_metric_sees_the_samples_in_their_order(engine):
    seen = []

    def weighted(scores, labels):
        seen.append(labels.tolist())
        return float((scores.argmax(1) == labels) @ np.arange(len(labels)))

    whole = qnn_ext.accuracy(engine, IMAGES, metric=weighted)
    found = qnn_ext.accuracy(engine, Shards([IMAGES[part] for part in PARTS], backwards), metric=weighted)
    assert figures(found) == figures(whole) and seen == [LABELS.tolist()] * 2


def test_what_shards_cannot_have(engine):
    shards = Shards([IMAGES[part] for part in PARTS])
    with pytest.raises(InputError, match="have their labels in each shard"):
        qnn_ext.accuracy(engine, shards, LABELS)
    with pytest.raises(InputError, match="no limit: give fewer shards"):
        qnn_ext.accuracy(engine, shards, limit=3)


@pytest.mark.parametrize("mapped", [None, over_wire])
def test_errors_name_the_shard(engine, mapped):
    with pytest.raises(InputError, match=r"shard 1: sample 0 of the data has label 12"):
        qnn_ext.accuracy(engine, Shards([IMAGES[:3], [(FIRST[0], 12)]], mapped))
    with pytest.raises(InputError, match=r"shard 1: .*no such file"):
        qnn_ext.accuracy(engine, Shards([IMAGES[:3], "/no/such/file.npz"], mapped))
