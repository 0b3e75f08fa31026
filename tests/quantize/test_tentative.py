"""Simulations in float: every value has the error of its integer."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.op.base import constant
from qnn_ext.quantize import QConfig, batches, control_settings
from qnn_ext.quantize.control_settings import Setting, State
from qnn_ext.quantize.engines import engine_of, shared_engines
from qnn_ext.quantize.stages import stages
from qnn_ext.quantize.tentative import tentative

from .networks import float_module
from .residual import DATA, error, results

CONFIG = QConfig(calibrate_mode="minmax", target="x86-64", balance=False, equalize=False, smooth=None)


@pytest.fixture(scope="module")
def module():
    """Convolutions with biases, also depthwise, and a dense layer behind a transpose, deep enough for one value on the
    other side of a half to be seen in many."""
    rng = np.random.default_rng(5)

    def weight(*shape):
        return constant((rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def bias(*shape):
        return constant(rng.normal(size=shape).astype(np.float32))

    def body(emit, x):
        for channels in (4, 8, 8, 8, 8):
            x = emit(relax.op.nn.conv2d(x, weight(8, channels, 1, 1)))
            x = emit(relax.op.nn.relu(emit(relax.op.add(x, bias(1, 8, 1, 1)))))
            x = emit(relax.op.nn.conv2d(x, weight(8, 1, 3, 3), padding=(1, 1), groups=8))
            x = emit(relax.op.nn.relu(emit(relax.op.add(bias(8, 1, 1), x))))
        rows = emit(relax.op.reshape(x, (8, 36)))
        return emit(relax.op.add(emit(relax.op.matmul(rows, weight(36, 5))), bias(5)))

    return float_module((1, 4, 6, 6), body)


def simulated(setting, state):
    return results(setting.module(state))


@pytest.mark.parametrize("precision", ["int8", "int16"])
def test_biases_are_rounded_as_in_integers(module, precision):
    setting = Setting("as configured", CONFIG, module, batches(DATA, module.inputs))
    state = State(wide=frozenset(list(setting.layers.reads)[2:4] if precision == "int16" else ()))
    overrides = {name: {"precision": "int16", "calibrate_mode": "minmax"} for name in state.wide}
    config = QConfig(**{**vars(CONFIG), "overrides": overrides})
    integers = stages(module, None, setting._data, config, setting.table(state)).result
    found, exact = results(integers), results(module)
    noise = np.square(found - exact).mean()
    assert np.square(simulated(setting, state) - found).mean() < 1e-6 * noise
    assert noise == pytest.approx(error(module, integers))


def test_biases_of_layers_in_float_are_exact(module):
    setting = Setting("as configured", CONFIG, module, batches(DATA, module.inputs))
    state = State(in_float=frozenset(setting.layers.reads))
    np.testing.assert_allclose(simulated(setting, state), results(module), rtol=1e-5, atol=1e-5)


def test_all_states_are_one_program(module, monkeypatch):
    from qnn_ext.quantize import engines

    compiled = []
    compile_module = engines.compile_module
    monkeypatch.setattr(engines, "compile_module", lambda *a, **k: compiled.append(a) or compile_module(*a, **k))
    setting = Setting("as configured", CONFIG, module, batches(DATA, module.inputs))
    names = list(setting.layers.reads)
    with shared_engines():
        setting.narrow  # noqa: B018, calibrated before
        compiled.clear()
        for state in (State(), State(in_float=frozenset(names[:2])), State(in_float=frozenset(names))):
            engines.engine_of(setting.module(state))
        engines.engine_of(setting.alone(next(iter(setting.narrow))))
    assert len(compiled) == 1


def test_sites_alone_are_constants_of_one_module(module, monkeypatch):
    """The same results as those of a module for each site, made once."""
    setting = Setting("as configured", CONFIG, module, batches(DATA, module.inputs))
    with shared_engines():
        expected = [engine_of(setting.alone(site)).run([DATA[:1]]) for site in setting.narrow]
        exact = engine_of(module).run([DATA[:1]])
        made = []
        monkeypatch.setattr(
            control_settings, "tentative", lambda *given, **more: made.append(1) or tentative(*given, **more)
        )
        found = [setting.alone_runner(site).run([DATA[:1]]) for site in setting.narrow]
    assert len(made) == 1 and len(expected) > 5
    for one, other in zip(found, expected, strict=True):
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name])
            assert not np.array_equal(value, exact[name])
