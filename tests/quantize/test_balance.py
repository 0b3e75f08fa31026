"""Channels of activations are balanced: the same function, fewer errors in 8 bits, and only where that can be."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import QuantizationError
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import CalibrationTable, QConfig, annotate, balance, control_accuracy, quantize, sites, stages
from qnn_ext.quantize.analysis import fidelity
from qnn_ext.quantize.balance import balancing_factors
from qnn_ext.quantize.channel_groups import groups_of
from qnn_ext.quantize.channel_values import ChannelValues
from qnn_ext.quantize.channels import weight_of
from qnn_ext.quantize.inserted_factors import factored_sites, with_factors
from qnn_ext.quantize.least_noise import Reader, best_scales

from .networks import float_module

RNG = np.random.default_rng(23)
CHANNELS = 16
SPREAD = np.exp(RNG.normal(size=CHANNELS) * 1.5)
DATA = RNG.normal(size=(24, 3, 12, 12)).astype(np.float32)
START = RNG.bit_generator.state


def weight(*shape, of=1.0):
    return constant((RNG.normal(size=shape) * of).astype(np.float32))


def conv(emit, x, w, **attrs):
    return emit(relax.op.nn.conv2d(x, w, padding=int(w.ty.shape[-1]) // 2, **attrs))


def clipped(emit, x):
    return emit(relax.op.clip(x, 0, 60))


def hard_swish(emit, x):
    part = emit(
        relax.op.divide(clipped(emit, emit(relax.op.add(x, constant(np.float32(3))))), constant(np.float32(60)))
    )
    return emit(relax.op.multiply(x, part))


def depthwise(function, spread=SPREAD):
    """conv → function → depthwise → function → conv; channels between the first two have these sizes."""

    def body(emit, x):
        y = function(emit, conv(emit, x, weight(CHANNELS, 3, 3, 3, of=spread.reshape(-1, 1, 1, 1))))
        undone = 1 / spread.reshape(-1, 1, 1, 1)
        y = function(emit, conv(emit, y, weight(CHANNELS, 1, 3, 3, of=undone), groups=CHANNELS))
        return conv(emit, y, weight(5, CHANNELS, 1, 1))

    return float_module((1, 3, 12, 12), body)


def excited(emit, x):
    """A squeeze and excitation whose gates differ, then a convolution."""
    y = hard_swish(emit, conv(emit, x, weight(CHANNELS, 3, 3, 3, of=SPREAD.reshape(-1, 1, 1, 1))))
    gate = emit(relax.op.mean(y, [2, 3], keepdims=True))
    gate = emit(relax.op.sigmoid(conv(emit, gate, weight(CHANNELS, CHANNELS, 1, 1))))
    z = emit(relax.op.multiply(y, gate))
    return conv(emit, z, weight(5, CHANNELS, 1, 1, of=1 / SPREAD.reshape(1, -1, 1, 1)))


def run(module):
    interpreter = Interpreter(module)
    return np.concatenate([interpreter(x[None]) for x in DATA])


def sqnr(module, integers):
    return fidelity(run(module), run(integers)).sqnr


@pytest.mark.parametrize("function", [clipped, hard_swish])
def test_channels_behind_any_function_are_balanced(function, tmp_path):
    module = depthwise(function)
    done = stages(module, dataset=DATA)
    plain = quantize(module, dataset=DATA, config=QConfig(balance=False))
    assert done.table.factored and sqnr(module, done.result) > sqnr(module, plain) + 6
    np.testing.assert_allclose(run(done["fold"]), run(module), rtol=1e-3, atol=1e-3)
    done.table.save(tmp_path / "table.json")
    again = quantize(module, table=tmp_path / "table.json")  # without data
    np.testing.assert_array_equal(run(again), run(done.result))
    assert [note.reason for note in done.result.notes] == [note.reason for note in plain.notes]  # nothing more in float


def test_squeeze_and_excitation_keeps_groups():
    module = float_module((1, 3, 12, 12), excited)
    balanced = balance(module, DATA)
    np.testing.assert_allclose(run(balanced), run(module), rtol=1e-3, atol=1e-3)
    ranges = [sqnr(module, quantize(module, dataset=DATA, config=QConfig(balance=on))) for on in (False, True)]
    assert ranges[1] > ranges[0] + 3


def test_what_others_read_gets_no_factors():
    def body(emit, x):
        y = hard_swish(emit, conv(emit, x, weight(CHANNELS, 3, 3, 3)))
        return emit(relax.op.add(conv(emit, y, weight(CHANNELS, CHANNELS, 1, 1)), emit(relax.op.exp(y))))

    module = float_module((1, 3, 12, 12), body)
    assert factored_sites(module) == []
    assert with_factors(module, []) is module


def test_single_values_are_left_alone():
    """Channels with one value in a sample: none may have been seen at its largest."""

    def body(emit, x):
        y = emit(relax.op.mean(hard_swish(emit, conv(emit, x, weight(CHANNELS, 3, 3, 3))), [2, 3]))
        return emit(
            relax.op.matmul(emit(relax.op.nn.relu(emit(relax.op.matmul(y, weight(CHANNELS, 8))))), weight(8, 5))
        )

    module = float_module((1, 3, 12, 12), body)
    weights = [weight_of(b.value) for b in bindings_of(balance(module, DATA).ir["main"])]
    before = [weight_of(b.value) for b in bindings_of(module.ir["main"])]
    np.testing.assert_array_equal(
        [w.array for w in weights if w is not None][-1], [w.array for w in before if w is not None][-1]
    )


def values(high, count=1000, low=None, scale=0.0):
    high = np.asarray(high, np.float64)
    low = np.zeros_like(high) if low is None else np.asarray(low, np.float64)
    return ChannelValues((low, high), (np.zeros_like(high), np.full_like(high, scale)), high**2 / 3, count)


def scales_of(found, weight, fixed=(False, False, False)):
    return best_scales([Reader(found, np.arange(3), weight, np.ones(()))], np.array(fixed))


def test_depthwise_weights_take_any_factors():
    call = relax.op.nn.conv2d(
        relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32")), constant(np.ones((3, 1, 1, 1), np.float32)), groups=3
    )
    call = relax.BlockBuilder().normalize(call)
    found = scales_of(values([1.0, 10.0, 0.1]), weight_of(call))
    np.testing.assert_allclose(found / found[0], [1, 10, 0.1])
    found = scales_of(values([1.0, 10.0, 0.1]), weight_of(call), (False, True, False))
    np.testing.assert_allclose(found, [0.1, 1, 0.01])  # the fixed one stays, and the others come up to it
    with_tails = values([1.0, 10.0, 0.1], count=10, scale=0.1)  # of the same size for all: the smallest needs most room
    found = scales_of(with_tails, weight_of(call))
    assert found[0] / found[2] < 9 and found[1] / found[2] < 90


def test_readers_of_small_tensors_decide_where_they_matter_more():
    call = relax.op.nn.conv2d(
        relax.Var("x", relax.TensorType((1, 3, 8, 8), "float32")), constant(np.ones((3, 1, 1, 1), np.float32)), groups=3
    )
    weight = weight_of(relax.BlockBuilder().normalize(call))
    large, small = values([100.0, 100.0, 100.0]), values([0.1, 1.0, 0.01])
    own = np.arange(3)
    for important, wanted in ((1e30, [0.1, 1, 0.01]), (1.0, [1, 1, 1])):
        readers = [Reader(large, own, weight, np.ones(())), Reader(small, own, weight, np.full(3, important))]
        found = best_scales(readers, np.zeros(3, bool))
        np.testing.assert_allclose(found / found[1], np.divide(wanted, wanted[1]), rtol=1e-6)


def test_needed_room_grows_with_tails_and_falls_with_values():
    few, many = (values([1.0], count=count, scale=0.05).needed[1] for count in (32, 32 * 256))
    assert 1 < many < few < 2
    assert values([1.0], scale=0.0).needed[1] == 1
    clipped = values([1.0], count=100, scale=0.1).clipped
    np.testing.assert_allclose(clipped(np.ones(1), (0, 1.0)), 2 * 0.1**2 / 100)
    np.testing.assert_allclose(clipped(np.ones(1), (0, 1.1)), 2 * 0.1**2 / 100 / np.e)


def test_a_table_for_other_tensors_is_refused():
    module = depthwise(clipped)
    table = stages(module, dataset=DATA).table
    wrong = CalibrationTable(table.ranges, scales=table.scales, factored=["none"])
    with pytest.raises(QuantizationError, match="do not fit"):
        quantize(module, table=wrong)


def test_a_search_starts_from_balanced_channels():
    found = control_accuracy(depthwise(hard_swish), dataset=DATA, min_sqnr=27)
    assert found.config.balance is True and found.report.chosen.share == 1


def test_factors_do_not_depend_on_layers_that_are_kept():
    """The ranges of a search's simulations are those of its result."""
    module = depthwise(hard_swish)
    config = QConfig(target="x86-64", balance=True)
    factored = with_factors(module, factored_sites(module))
    expected = [factors for _, factors in balancing_factors(factored, DATA, config)]
    layers = {site.layer for site in sites(annotate(module, config))}
    assert len(expected) > 1 and len(layers) == 3
    for layer in layers:
        kept = replace(config, overrides={layer: {"precision": "float32"}})
        found = [factors for _, factors in balancing_factors(factored, DATA, kept)]
        assert len(found) == len(expected) and all(map(np.array_equal, found, expected))


def test_a_damaged_table_is_refused(tmp_path):
    path = tmp_path / "table.json"
    path.write_text('{"format": "qnn_ext calibration table", "version": 1, "model": "", "factored": [1], "ranges": {}}')
    with pytest.raises(QuantizationError, match='"factored" must list names'):
        CalibrationTable.load(path)


def test_functions_before_factors_stay_cubics():
    module = depthwise(lambda emit, x: emit(relax.op.nn.silu(x)), SPREAD**0.3)
    integers = quantize(module, dataset=DATA, config=QConfig(balance=True))
    assert integers.ir.script().count("R.qnn.piecewise(") == 2
    assert sqnr(module, integers) > 30


def activation(emit, x):
    return emit(relax.op.nn.silu(x))


def shuffled(emit, x):
    """ShuffleNet's units: half of the channels through a branch, both halves concatenated, then interleaved."""
    for _ in range(2):
        kept, y = (emit(part) for part in halves(emit, x))
        y = emit(relax.op.nn.relu(conv(emit, y, weight(8, 8, 3, 3, of=SPREAD[:8].reshape(-1, 1, 1, 1)))))
        y = emit(relax.op.reshape(emit(relax.op.concat([kept, y], 1)), (1, 2, 8, 12, 12)))
        x = emit(relax.op.reshape(emit(relax.op.permute_dims(y, [0, 2, 1, 3, 4])), (1, 16, 12, 12)))
    return x


def shuffled_in_rows(emit, x):
    """The same with pairs of channels as rows of a matrix, of which one half is taken: as PyTorch exports it."""
    for _ in range(2):
        rows = emit(relax.op.permute_dims(emit(relax.op.reshape(x, (8, 2, 144))), [1, 0, 2]))
        both = emit(relax.op.reshape(rows, (2, 1, 8, 12, 12)))
        kept, y = (emit(relax.op.take(both, relax.const(i, "int64"), axis=0)) for i in range(2))
        y = emit(relax.op.nn.relu(conv(emit, y, weight(8, 8, 3, 3, of=SPREAD[:8].reshape(-1, 1, 1, 1)))))
        x = emit(relax.op.concat([kept, y], 1))
    return x


def widened(emit, x):
    """BlazeFace's units: what goes around a depthwise product gets further channels, which are zeros."""
    for zeros in (lambda y: relax.op.nn.pad(y, [0, 0, 0, 4, 0, 0, 0, 0]), joined_with_zeros):
        y = conv(emit, x, weight(int(x.ty.shape[1]), 1, 3, 3), groups=int(x.ty.shape[1]))
        y = conv(emit, y, weight(int(x.ty.shape[1]) + 4, int(x.ty.shape[1]), 1, 1))
        x = emit(relax.op.nn.relu(emit(relax.op.add(y, emit(zeros(x))))))
    return x


def joined_with_zeros(x):
    return relax.op.concat([x, constant(np.zeros((1, 4, 12, 12), np.float32))], 1)


def halves(emit, x):
    parts = emit(relax.op.split(x, 2, 1))
    return [relax.TupleGetItem(parts, i) for i in range(2)]


def cross_stage(emit, x):
    """A residual unit and what goes around it, concatenated; the input of the unit is added to what it computes."""
    one, two = (
        emit(part)
        for part in halves(emit, activation(emit, conv(emit, x, weight(16, 16, 1, 1, of=SPREAD.reshape(-1, 1, 1, 1)))))
    )
    deep = activation(emit, conv(emit, one, weight(8, 8, 3, 3)))
    return emit(relax.op.concat([emit(relax.op.add(one, deep)), two], 1))


def skipped(emit, x):
    """Of a U-net: a skip connection beside what comes back up, one half of which something else reads, too."""
    down = emit(relax.op.nn.max_pool2d(activation(emit, conv(emit, x, weight(16, 16, 3, 3))), (2, 2), strides=(2, 2)))
    up = emit(relax.op.image.resize2d(down, (12, 12), layout="NCHW", method="linear"))
    gate = emit(relax.op.sigmoid(x))
    return emit(relax.op.concat([emit(relax.op.nn.relu(conv(emit, x, weight(4, 16, 1, 1)))), up, gate], 1))


@pytest.mark.parametrize("part", [shuffled, shuffled_in_rows, widened, cross_stage, skipped])
def test_concatenated_channels_are_balanced(part):
    def body(emit, x):
        y = emit(relax.op.nn.relu(conv(emit, x, weight(CHANNELS, 3, 3, 3, of=SPREAD.reshape(-1, 1, 1, 1)))))
        y = part(emit, y)
        return conv(emit, y, weight(5, int(y.ty.shape[1]), 1, 1))

    module = float_module((1, 3, 12, 12), body)
    balanced = balance(module, DATA)
    np.testing.assert_allclose(run(balanced), run(module), rtol=1e-3, atol=1e-3 * np.abs(run(module)).max())
    if part not in (cross_stage, skipped):  # what follows the first product is in a group
        (scales,) = (found for group, found in balancing_factors(module, DATA, QConfig()) if 0 in group.producers)
        assert scales.max() > 4 * scales.min()


def upsampled(function=hard_swish, spread=SPREAD):
    """conv → function → transposed conv → relu → conv; channels on both sides of it have these sizes."""
    undone = 1 / spread.reshape(-1, 1, 1, 1)

    def body(emit, x):
        y = function(emit, conv(emit, x, weight(CHANNELS, 3, 3, 3, of=spread.reshape(-1, 1, 1, 1))))
        up = weight(CHANNELS, CHANNELS, 2, 2, of=undone * spread.reshape(1, -1, 1, 1))
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d_transpose(y, up, strides=2))))
        return conv(emit, y, weight(5, CHANNELS, 1, 1, of=1 / spread.reshape(1, -1, 1, 1)))

    return float_module((1, 3, 12, 12), body)


def test_channels_around_a_transposed_convolution_are_balanced():
    module = upsampled()
    done = stages(module, dataset=DATA)
    plain = quantize(module, dataset=DATA, config=QConfig(balance=False))
    main = with_factors(module, factored_sites(module)).ir["main"]
    groups, names = groups_of(main), [op_name(binding.value) for binding in bindings_of(main)]
    index = names.index("nn.conv2d_transpose")
    assert [index in group.consumers for group in groups].count(True) == 1
    assert [index in group.producers for group in groups].count(True) == 1
    np.testing.assert_allclose(run(done["fold"]), run(module), rtol=1e-3, atol=1e-3)
    assert done.table.scales and sqnr(module, done.result) > sqnr(module, plain) + 6


def test_transposed_convolutions_in_groups_are_left_alone():
    call = relax.op.nn.conv2d_transpose(
        relax.Var("x", relax.TensorType((1, 4, 8, 8), "float32")), constant(np.ones((4, 1, 2, 2), np.float32)), groups=4
    )
    call = relax.BlockBuilder().normalize(call)
    assert weight_of(call, transposed=True) is None
    assert weight_of(call) is None
