"""A layer in float reads its data as they are before they are quantized for others, also in simulations of a search."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.op.base import constant
from qnn_ext.quantize import QConfig, annotate, batches, fold, quantize, sites
from qnn_ext.quantize.control_settings import Setting, State, kept
from qnn_ext.quantize.stages import stages

from .networks import float_module
from .residual import DATA, results

CONFIG = QConfig(calibrate_mode="minmax", target="x86-64")


@pytest.fixture(scope="module")
def module():
    """One convolution, whose result two others read; theirs are joined."""
    rng = np.random.default_rng(3)

    def conv(emit, x, channels):
        weight = constant(rng.normal(size=(8, channels, 1, 1)).astype(np.float32))
        return emit(relax.op.nn.conv2d(x, weight))

    def body(emit, x):
        both = emit(relax.op.nn.relu(conv(emit, x, 4)))
        return emit(relax.op.concat([conv(emit, both, 8), conv(emit, both, 8)], 1))

    return float_module((1, 4, 6, 6), body)


@pytest.fixture(scope="module")
def layers(module):
    found = sites(annotate(fold(module, CONFIG), CONFIG))
    return [site.layer for site in found if site.role == "weight"]


def check(module, found):
    """The second half is that of the float network, the first one is not."""
    exact = results(module)
    np.testing.assert_allclose(found[:, 8:], exact[:, 8:], rtol=1e-4, atol=1e-4)
    assert np.abs(found[:, :8] - exact[:, :8]).max() > 1e-2


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_integers(module, layers, precision):
    first, _, last = layers
    overrides = {first: {"precision": "float32"}, last: {"precision": precision}}
    found = results(quantize(module, dataset=DATA, config=QConfig(target="x86-64", overrides=overrides)))
    if precision == "float32":
        check(module, found)
    else:  # rounded to 11 bits and not to 8
        exact = results(module)
        assert np.square(found - exact)[:, 8:].sum() * 16 < np.square(found - exact)[:, :8].sum()


def test_simulations(module, layers):
    setting = Setting("as configured", CONFIG, module, batches(DATA, module.inputs))
    kept = setting.module(State(in_float=frozenset({layers[0], layers[2]})))
    check(module, results(kept))
    (site,) = {site for site in setting.narrow if "weight" not in site} - {"x"}
    assert np.abs(results(setting.alone(site)) - results(module)).max(axis=(0, 2, 3)).min() > 0, "all readers"
    noise = dict.fromkeys(setting.narrow, 0.0) | {site: 1.0}
    (step,) = (new for new in setting.layers.path(noise, "float32")[:1])
    assert step.in_float & set(layers[1:]), "half of the noise goes with one of two readers"


def test_a_sum_still_reads_integers():
    """A layer in float reads a tensor as it is; a sum into which another product goes reads its integers."""
    rng = np.random.default_rng(4)

    def conv(emit, x):
        return emit(relax.op.nn.conv2d(x, constant(rng.normal(size=(8, 8, 1, 1)).astype(np.float32) / 3)))

    def body(emit, x):
        first = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, constant(np.ones((8, 4, 1, 1), np.float32))))))
        last = conv(emit, emit(relax.op.nn.relu(conv(emit, first))))
        return conv(emit, emit(relax.op.nn.relu(emit(relax.op.add(last, first)))))

    module = float_module((1, 4, 6, 6), body)
    setting = Setting("as configured", CONFIG, module, batches(DATA, module.inputs))
    marked = sites(annotate(fold(module, CONFIG), CONFIG))
    names = [site.layer for site in marked if site.role == "weight"]
    state = State(in_float=frozenset({names[1]}))
    found = results(stages(module, None, DATA, kept(setting.config, state), setting.table(state)).result)
    noise = np.square(found - results(module)).mean()
    assert np.square(results(setting.module(state)) - found).mean() < 1e-2 * noise
