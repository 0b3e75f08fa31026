"""MatMulNBits against ONNX Runtime. Compiled for a CPU with AVX-512 VNNI, level 4 has the same bits; otherwise floats
differ where they are added in another order."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.numerics.packed import pack

from .graphs import compiled_and_expected, onnx
from .single_op import MICROSOFT, compare, const, full_range, single_op

TOLERANCE = 1e-6  # of the largest result: 30 roundings, of which 256 terms in blocks of 16 to 128 make about 10


def inputs_of(rng, rows, depth, columns, bits, block, zeros=None, g_idx=None, bias=False, floats=np.float32):
    blocks = -(-depth // block)
    packed = full_range(rng, np.uint8, columns, blocks, block * bits // 8)
    points = {
        None: None,
        "integers": const(full_range(rng, np.uint8, columns, -(-blocks * bits // 8)), np.uint8),
        "floats": const(rng.random((columns, blocks)) * 8, floats),
    }[zeros]
    values = [
        rng.standard_normal((2, rows, depth)).astype(floats),
        const(packed, np.uint8),
        const(rng.random((columns, blocks)) * 0.1, floats),
        points,
        None if g_idx is None else const(g_idx, np.int32),
        const(rng.standard_normal(columns), floats) if bias else None,
    ]
    while values[-1] is None:
        values.pop()
    return values, {"N": columns, "K": depth, "bits": bits, "block_size": block}


def check(rng, shape, bits, block, level=0, tolerance=TOLERANCE, **rest):
    inputs, attributes = inputs_of(rng, *shape, bits, block, **rest)
    floats = rest.get("floats", np.float32)
    return compare("MatMulNBits", inputs, [floats], tolerance, domain=MICROSOFT, accuracy_level=level, **attributes)


@pytest.mark.parametrize("level", range(5))
@pytest.mark.parametrize("bits, block", [(2, 16), (2, 64), (4, 16), (4, 32), (8, 16), (8, 128)])
@pytest.mark.parametrize("zeros", [None, "integers"])
def test_levels(zeros, bits, block, level, rng):
    module = check(rng, (3, 256, 24), bits, block, level, zeros=zeros, bias=True)
    integers = level == 4 and (bits, block) != (2, 16)
    assert [note.operator for note in module.notes] == ([] if integers else ["MatMulNBits"])
    name = "blockwise_dense_int8" if integers else "blockwise_dense("
    assert name in module.ir.script()
    assert coverage(module).share == (1 if integers else 0)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_last_block_that_is_shorter(rows, level, rng):
    check(rng, (rows, 50, 7), 4, 16, level, zeros="integers")


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("bits, block", [(4, 16), (4, 32), (4, 64), (4, 128), (4, 512), (8, 32), (8, 64), (8, 256)])
@pytest.mark.parametrize("zeros", [None, "integers"])
def test_bits_of_onnx_runtime(zeros, bits, block, rows, rng):
    inputs, attributes = inputs_of(rng, rows, 432, 22, bits, block, zeros=zeros, bias=zeros is None)
    proto, feed = single_op("MatMulNBits", inputs, [np.float32], domain=MICROSOFT, accuracy_level=4, **attributes)
    np.testing.assert_array_equal(*compiled_and_expected(proto, feed))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_an_addition_is_the_bias(first, bias, rng):
    """Of a product that has none of its own."""
    inputs, attributes = inputs_of(rng, 3, 96, 10, 4, 32, zeros="integers", bias=bias)
    proto, feed = single_op("MatMulNBits", inputs, [np.float32], domain=MICROSOFT, accuracy_level=4, **attributes)
    graph = proto.graph
    graph.initializer.append(onnx.numpy_helper.from_array(rng.standard_normal(10).astype(np.float32), "offset"))
    output = graph.output[0].name
    graph.node[0].output[0] = "product"
    graph.node.append(onnx.helper.make_node("Add", ["offset", "product"] if first else ["product", "offset"], [output]))
    np.testing.assert_array_equal(*compiled_and_expected(proto, feed))


@pytest.mark.parametrize("bits", [2, 4])
def test_zero_points_of_floats(bits, rng):
    """Then ONNX Runtime multiplies floats at every level."""
    check(rng, (3, 128, 9), bits, 32, 4, zeros="floats")


@pytest.mark.parametrize("in_order", [False, True])
def test_g_idx(in_order, rng):
    """Without zero points, which ONNX Runtime 1.32 ignores next to a g_idx."""
    groups = np.arange(128) // 32
    module = check(rng, (3, 128, 9), 4, 32, g_idx=groups if in_order else rng.permutation(groups))
    assert ("R.take(" in module.ir.script()) is not in_order


@pytest.mark.parametrize("last", [0, 5])
def test_g_idx_with_blocks_of_different_lengths(last, rng):
    """They are filled up with zeros; a block may be empty, and K no multiple of the block."""
    groups = np.minimum(rng.integers(0, 4, 128 - last), 2 + (last > 0))
    assert len(set(np.bincount(groups, minlength=4))) > 1
    check(rng, (3, 128 - last, 9), 4, 32, g_idx=groups, bias=True)


@pytest.mark.parametrize("level", [0, 4])
def test_float16(level, rng):
    check(rng, (3, 128, 9), 4, 32, level, bias=True, floats=np.float16)


def test_rows_of_zeros(rng):
    inputs, attributes = inputs_of(rng, 3, 64, 9, 4, 32)
    inputs[0][0], inputs[0][1, :, :32] = 0, 0
    compare("MatMulNBits", inputs, [np.float32], TOLERANCE, domain=MICROSOFT, accuracy_level=4, **attributes)


def test_the_file_holds_four_bits(rng, tmp_path):
    """Half a byte and an eighth of a float32 scale for each weight."""
    inputs, attributes = inputs_of(rng, 1, 512, 1024, 4, 32)
    model, _ = single_op("MatMulNBits", inputs, [np.float32], domain=MICROSOFT, accuracy_level=4, **attributes)
    path = tmp_path / "model.qnn"
    qnn_ext.build(qnn_ext.from_onnx(model), num_threads=1).save(path)
    weights = 512 * 1024 * (4 + 32 / 32) / 8
    assert path.stat().st_size < 1.05 * weights


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("floats", [np.float32, np.float16])
def test_gather_block_quantized(floats, zeros, bits, rng):
    rows, depth, block = 11, 64, 16
    blocks = depth // block
    inputs = [
        const(full_range(rng, np.uint8, rows, depth * bits // 8), np.uint8),
        rng.integers(-rows, rows, (2, 3)),
        const(rng.random((rows, blocks)), floats),
        const(full_range(rng, np.uint8, rows, blocks * bits // 8), np.uint8) if zeros else None,
    ]
    inputs = inputs if zeros else inputs[:3]
    module = compare("GatherBlockQuantized", inputs, [floats], domain=MICROSOFT, bits=bits, block_size=block)
    assert f"R.Tensor(({rows}, {depth})" not in module.ir.script()


def test_gather_of_columns(rng):
    inputs = [const(full_range(rng, np.uint8, 8, 32), np.uint8), np.array([1]), const(np.ones((8, 4)))]
    model, _ = single_op("GatherBlockQuantized", inputs, [np.float32], domain=MICROSOFT, gather_axis=1, block_size=16)
    with pytest.raises(UnsupportedOperatorError, match="rows and columns"):
        qnn_ext.from_onnx(model)


# ---- what is refused ---------------------------------------------------------------------------------------------


def refused(error, message, position=None, value=None, **changes):
    rng = np.random.default_rng(0)
    inputs, attributes = inputs_of(rng, 3, 64, 8, 4, 32, zeros="integers")
    inputs += [None] * ((position or 0) + 1 - len(inputs))
    if position is not None:
        inputs[position] = value
    model, _ = single_op("MatMulNBits", inputs, [np.float32], domain=MICROSOFT, **{**attributes, **changes})
    with pytest.raises(error, match=message):
        qnn_ext.from_onnx(model)


def test_bits():
    refused(UnsupportedOperatorError, "weights of 3 bits", bits=3)


@pytest.mark.parametrize("size", [0, 8, 24, -32])
def test_block_sizes(size):
    refused(ModelFormatError, f"block_size must be a power of two from 16 on, found {size}", block_size=size)


def test_truncated_weights():
    short = const(np.zeros((8, 2, 15)), np.uint8)
    refused(ModelFormatError, r"B must have 8 × 32 elements to fit .* \(4 bits, blocks of 32\)", 1, short)


def test_scales_of_the_wrong_length():
    refused(ModelFormatError, "scales must have 8 × 2 elements", 2, const(np.ones(15)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scales_that_are_not_finite(value):
    refused(ModelFormatError, "scales must be finite", 2, const(np.full((8, 2), value)))


def test_zero_points_of_the_wrong_length():
    refused(ModelFormatError, "zero_points must have 8 × 1 elements", 3, const(np.zeros(9), np.uint8))


def test_depth():
    refused(ModelFormatError, r"A must have 96 columns \(K\), found shape \(2, 3, 64\)", K=96)


@pytest.mark.parametrize("groups", [[2] * 64, [-1] * 64, [0] * 63])
def test_g_idx_out_of_range(groups):
    refused(ModelFormatError, "g_idx must have K = 64 elements between 0 and 1", 4, const(groups, np.int32))


def test_g_idx_that_makes_one_block_too_long():
    inputs, attributes = inputs_of(np.random.default_rng(0), 3, 96, 8, 4, 16, g_idx=np.zeros(96, int))
    model, _ = single_op("MatMulNBits", inputs, [np.float32], domain=MICROSOFT, **attributes)
    with pytest.raises(
        UnsupportedOperatorError, match="a g_idx with 96 of K = 96 columns in one of 6 blocks: quantize"
    ):
        qnn_ext.from_onnx(model)


def test_packing_is_that_of_onnx_runtime(rng):
    """The identity times B is B."""
    values = np.array([[1, 15, 8, 0] * 8, [7, 9, 3, 5] * 8])
    inputs = [np.eye(32, dtype=np.float32), const(pack(values, "uint4").reshape(2, 1, 16), np.uint8), const([[1], [2]])]
    module = compare("MatMulNBits", inputs, [np.float32], 1e-7, domain=MICROSOFT, N=2, K=32, bits=4, block_size=32)
    (result,) = qnn_ext.Interpreter(module).run({"in0": inputs[0]}).values()
    np.testing.assert_array_equal(result.T, (values - 8) * np.float32([[1], [2]]))


@pytest.mark.parametrize(
    "position, value, message",
    [
        (0, const(np.zeros((11, 24)), np.uint8), "scales must have 11 × 3 elements"),
        (2, const(np.ones((11, 3))), r"scales must have 11 × 4 elements .*\(4 bits, blocks of 16\)"),
        (2, const(np.full((11, 4), np.nan)), "scales must be finite"),
        (3, const(np.zeros((11, 3)), np.uint8), "zero_points must have 11 × 2 elements"),
    ],
)
def test_rows_of_an_embedding_that_do_not_fit(position, value, message):
    inputs = [
        const(np.zeros((11, 32)), np.uint8),
        np.array([1]),
        const(np.ones((11, 4))),
        const(np.zeros((11, 2)), np.uint8),
    ]
    inputs[position] = value
    model, _ = single_op("GatherBlockQuantized", inputs, [np.float32], domain=MICROSOFT, bits=4, block_size=16)
    with pytest.raises(ModelFormatError, match=message):
        qnn_ext.from_onnx(model)
