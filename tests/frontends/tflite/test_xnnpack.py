"""Midpoints with numerics="float32", as LiteRT with its default delegate has them: the ends of fused activations, which
XNNPACK rounds to even with the zero point added, and what LiteRT computes beside XNNPACK."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.targets.host import host_features
from tests.conformance.tflite_models.builder import Graph, Q

pytest.importorskip("ai_edge_litert")
needs_fma = pytest.mark.skipif("fma" not in host_features(), reason="XNNPACK rounds otherwise without FMA")

SHAPE = (1, 4, 4, 8)
WINDOW = {"padding": "VALID", "strideH": 1, "strideW": 1}


def check(graph, output, *arrays, tolerance=0.0, built=False):
    from tests.conformance.tflite_models.runner import invoke

    graph.packed.outputs = [output]
    content = graph.build()
    ((expected,),) = invoke(content, [list(arrays)], "default", False)
    module = qnn_ext.from_tflite(content)
    runs = qnn_ext.build(module) if built else qnn_ext.Interpreter(module)
    (found,) = runs.run(list(arrays)).values()
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def check_all(graph, outputs, data):
    """All bits of several results of a built engine."""
    from tests.conformance.tflite_models.runner import invoke

    graph.packed.outputs = outputs
    content = graph.build()
    (expected,) = invoke(content, [[data]], "default", False)
    found = qnn_ext.build(qnn_ext.from_tflite(content)).run([data]).values()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def quantized_too(graph):
    """Make it a quantized model, whose floats have XNNPACK's bits."""
    graph.const(np.ones((1, 1), np.int8), q=Q(0.01, 0))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", ["CONV_2D", "FULLY_CONNECTED", "ADD", "SUB", "MUL", "MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_ends_of_fused_activations(rng, name, dtype):
    middle = 0 if dtype == "int8" else 128
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, SHAPE, endpoint=True).astype(dtype)
    for zero_point in (middle + 3, middle + 4):
        for activation, scale in (("relu6", 4.0), ("relu6", 12.0), ("relu_n1_to_1", 2.0)):
            graph, q = Graph(), Q(scale, zero_point)
            data = graph.input(SHAPE, dtype, q if "POOL" in name else Q(1.0, middle))
            operands, options, size = [data], {}, SHAPE[1:3]
            if name in ("CONV_2D", "FULLY_CONNECTED"):
                eye = (np.eye(8) + middle).astype(dtype)
                shape = (8, 1, 1, 8) if name == "CONV_2D" else (8, 8)
                operands.append(graph.const(eye.reshape(shape), q=Q(1.0, middle)))
                operands.append(graph.const(np.zeros(8, np.int32), q=Q(1.0, 0)))
                dilation = {"dilationHFactor": 1, "dilationWFactor": 1}
                options = {**WINDOW, **dilation} if name == "CONV_2D" else {"keepNumDims": True}
            elif "POOL" in name:
                options, size = {**WINDOW, "filterHeight": 2, "filterWidth": 2}, (3, 3)
            else:
                other = np.full(SHAPE, middle + (name == "MUL"), dtype)
                operands.append(graph.const(other, q=Q(1.0, middle)))
            output = graph.tensor((1, *size, 8), dtype, q)
            graph.op(name, operands, [output], act=activation, **options)
            check(graph, output, x)


def test_concatenation_of_different_scales():
    """In LiteRT's kernel, midpoints away from zero."""
    graph = Graph()
    one, two = graph.input((2, 128), "uint8", Q(1 / 64, 128)), graph.input((2, 128), "uint8", Q(1 / 16, 0))
    output = graph.tensor((2, 256), "uint8", Q(1 / 16, 128))
    graph.op("CONCATENATION", [one, two], [output], axis=1, act="none")
    values = np.arange(256, dtype=np.uint8).reshape(2, 128)
    check(graph, output, values, values)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_squares(dtype):
    """MUL of a tensor with itself: midpoints to even with the zero point added, where products round before."""
    for number, scale in enumerate((1 / 16, 1 / 8, 0.0371)):
        graph, zero_point = Graph(), (3 if dtype == "int8" else 131) + number
        x = graph.input((1, 256), dtype, Q(scale, zero_point))
        output = graph.tensor((1, 256), dtype, Q(scale * 2, zero_point))
        graph.op("MUL", [x, x], [output], act="relu6" if number else "none")
        check(graph, output, np.arange(256, dtype=np.uint8).view(dtype)[None])


@pytest.mark.parametrize(
    ("kernel", "stride", "units", "depth"),
    [(1, 1, 5, 6), (1, 2, 5, 6), (3, 1, 5, 6), (1, 1, 1, 1), (1, 1, 2, 1)],
)
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_float_activations_of_int8_convolutions(rng, kernel, stride, units, depth, padding):
    """Quantized per image, or per pixel where XNNPACK turns the convolution into a dense layer."""
    graph = Graph()
    x = graph.input((2, 4, 4, depth), "float32")
    weights = rng.integers(-127, 128, (units, kernel, kernel, depth), endpoint=False).astype(np.int8)
    operands = [x, graph.const(weights, q=Q(np.linspace(0.01, 0.02, units), 0))]
    operands.append(graph.const(np.linspace(-1, 1, units, dtype=np.float32)))
    size = 4 if padding == "SAME" else 5 - kernel
    output = graph.tensor((2, -(-size // stride), -(-size // stride), units), "float32")
    window = {"strideH": stride, "strideW": stride, "dilationHFactor": 1, "dilationWFactor": 1}
    graph.op("CONV_2D", operands, [output], act="none", padding=padding, **window)
    values = rng.normal(0, 1, (2, 4, 4, depth)).astype(np.float32)
    values[1] *= 3
    values[0, 0, 0] = 0
    check(graph, output, values, tolerance=1e-4)


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("kernel", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_midpoints_of_transposed_convolutions_with_gaps(rng, kernel, padding):
    """XNNPACK takes those with gaps between the windows only if nothing is padded."""
    graph, x = Graph(), rng.integers(-128, 128, (1, 9, 9, 4)).astype(np.int8)
    weights = rng.integers(-2, 3, (5, *kernel, 4)).astype(np.int8)
    shape, bias = (1, 18, 18, 5), rng.integers(-9, 9, 5).astype(np.int32)
    data = graph.input(x.shape, "int8", Q(1.0, 1))
    operands = [graph.const(list(shape), "int32"), graph.const(weights, q=Q(np.full(5, 0.5), 0)), data]
    output = graph.tensor(shape, "int8", Q(1.0, 1))
    options = {"padding": padding, "strideH": 2, "strideW": 2, "act": "none"}
    graph.op("TRANSPOSE_CONV", [*operands, graph.const(bias, q=Q(np.full(5, 0.5), 0))], [output], **options)
    check(graph, output, x)


@pytest.mark.parametrize("name", ["CONV_2D", "FULLY_CONNECTED"])
def test_float_products_with_a_computed_bias(rng, name):
    """XNNPACK takes constant biases alone; LiteRT's kernels multiply by both scales at once."""
    graph, shape = Graph(), (2, 3, 3, 6) if name == "CONV_2D" else (5, 6)
    x, bias = graph.input(shape, "float32"), graph.input((7,), "float32")
    weights = rng.integers(-127, 128, (7, 1, 1, 6) if name == "CONV_2D" else (7, 6)).astype(np.int8)
    output = graph.tensor((*shape[:-1], 7), "float32")
    window = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "padding": "VALID"}
    options = window if name == "CONV_2D" else {"asymmetricQuantizeInputs": True}
    graph.op(name, [x, graph.const(weights, q=Q(np.linspace(0.01, 0.02, 7), 0)), bias], [output], act="none", **options)
    check(graph, output, *(rng.normal(0, 1, dims).astype(np.float32) for dims in (shape, (7,))))


@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [
        ((2, 2), 2, "VALID"),
        ((3, 3), 2, "SAME"),
        ((4, 5), 1, "SAME"),
        ((7, 5), 3, "VALID"),
        ((15, 14), 1, "VALID"),  # the whole image
        ((1, 1), 2, "VALID"),  # gaps: TFLite's own kernel
    ],
)
def test_average_pools_of_floats(rng, window, stride, padding):
    """Their sums have XNNPACK's order: one step later, a dynamically quantized convolution may round them."""
    shape = (2, 15, 14, 5)
    size = [
        -(-extent // stride) if padding == "SAME" else (extent - taps) // stride + 1
        for extent, taps in zip(shape[1:3], window, strict=True)
    ]
    graph = Graph()
    x = graph.input(shape, "float32")
    output = graph.tensor((2, *size, 5), "float32")
    options = {"filterHeight": window[0], "filterWidth": window[1], "strideH": stride, "strideW": stride}
    graph.op("AVERAGE_POOL_2D", [x], [output], act="none", padding=padding, **options)
    quantized_too(graph)
    check(graph, output, rng.normal(0, 1, shape).astype(np.float32), built=True)


@pytest.mark.parametrize("corners, half", [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize("size", [(17, 19), (24, 24), (5, 7), (1, 40)])
def test_bilinear_interpolation_of_floats(rng, size, corners, half):
    shape, graph = (2, 12, 11, 5), Graph()
    x = graph.input(shape, "float32")
    output = graph.tensor((2, *size, 5), "float32")
    options = {"alignCorners": corners, "halfPixelCenters": half}
    graph.op("RESIZE_BILINEAR", [x, graph.const(list(size), "int32")], [output], **options)
    quantized_too(graph)
    for built in (False, True):
        check(graph, output, rng.normal(0, 1, shape).astype(np.float32), built=built)


@pytest.mark.skipif("avx512f" not in host_features(), reason="XNNPACK has other kernels without AVX-512")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("name", ["MEAN", "SUM"])
@pytest.mark.parametrize(
    ("axes", "shape"),
    [
        *[
            (axes, (2, 7, 9, 13))
            for axes in ([1], [2], [1, 2], [0, 1, 2], [0, 2], [2, 3], [1, 3], [0, 1, 3], [0, 2, 3])
        ],
        *[([1], (3, length)) for length in (1, 5, 16, 31, 32, 47, 50, 63, 64, 197, 1000)],
        ([0, 3], (4, 1, 3, 40)),
    ],
)
def test_sums_of_floats(rng, name, axes, shape, keep):
    """XNNPACK multiplies by 1 / n where TFLite's kernel divides by n."""
    graph = Graph()
    x = graph.input(shape, "float32")
    output = graph.tensor(
        [1 if axis in axes else n for axis, n in enumerate(shape) if keep or axis not in axes], "float32"
    )
    graph.op(name, [x, graph.const(axes, "int32")], [output], keepDims=keep)
    quantized_too(graph)
    check(graph, output, rng.normal(0, 1, shape).astype(np.float32), built=True)


CONV = {"dilationHFactor": 1, "dilationWFactor": 1, "padding": "SAME"}


@needs_fma
@pytest.mark.parametrize(
    ("name", "depth", "weights", "stride"),
    [
        ("CONV_2D", 3, (16, 3, 3, 3), 2),
        ("CONV_2D", 24, (10, 3, 3, 24), 1),
        ("CONV_2D", 1, (10, 5, 5, 1), 1),
        ("CONV_2D", 2, (10, 1, 1, 2), 1),
        ("CONV_2D", 24, (10, 1, 1, 24), 1),
        ("DEPTHWISE_CONV_2D", 16, (1, 3, 3, 16), 1),
        ("DEPTHWISE_CONV_2D", 20, (1, 5, 5, 20), 2),
        ("DEPTHWISE_CONV_2D", 16, (1, 7, 7, 16), 1),
        ("DEPTHWISE_CONV_2D", 6, (1, 3, 2, 12), 1),
        ("FULLY_CONNECTED", 24, (10, 24), 1),
    ],
)
def test_float_products_of_dynamically_quantized_models(rng, name, depth, weights, stride):
    """XNNPACK's sums start at the bias; those of depthwise convolutions go through the taps column by column,
    up to 25 of them."""
    graph, shape = Graph(), (2, 9, 8, depth)
    units = weights[-1] if name.startswith("DEPTH") else weights[0]
    x = graph.input(shape, "float32")
    size = [-(-extent // stride) for extent in shape[1:3]]
    product = graph.tensor((2, *size, units), "float32")
    arrays = [rng.normal(0, 1, part).astype(np.float32) for part in (weights, (units,))]
    options = {"keepNumDims": True} if name == "FULLY_CONNECTED" else {**CONV, "strideH": stride, "strideW": stride}
    if name.startswith("DEPTH"):
        options["depthMultiplier"] = units // depth
    graph.op(name, [x, *map(graph.const, arrays)], [product], act="none", **options)
    quantized = graph.const(rng.integers(-127, 128, (4, units)).astype(np.int8), q=Q(0.01, 0))
    result = graph.tensor((2, *size, 4), "float32")
    graph.op("FULLY_CONNECTED", [product, quantized], [result], act="none", keepNumDims=True)
    check_all(graph, [product, result], rng.normal(0, 1, shape).astype(np.float32))


@needs_fma
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "kernel, strides, padding, depth",
    [
        ((3, 3), (2, 2), "SAME", 8),
        ((4, 4), (2, 2), "VALID", 37),
        ((5, 3), (2, 1), "SAME", 1),
        ((1, 3), (1, 1), "VALID", 5),
        ((2, 2), (2, 2), "SAME", 16),
    ],
)
def test_transposed_convolutions_of_dynamically_quantized_models(rng, kernel, strides, padding, depth, bias):
    """XNNPACK adds the taps in the order of the weights, from the bias on."""
    graph, shape, units = Graph(), (2, 5, 6, depth), 4
    x = graph.input(shape, "float32")
    size = [
        extent * stride if padding == "SAME" else (extent - 1) * stride + taps
        for extent, stride, taps in zip(shape[1:3], strides, kernel, strict=True)
    ]
    product, result = (graph.tensor((2, *size, units), "float32") for _ in range(2))
    parts = [rng.normal(0, 1, part).astype(np.float32) for part in ((units, *kernel, depth), (units,))]
    weight, *biases = map(graph.const, parts if bias else parts[:1])
    inputs = [graph.const(np.int32([2, *size, units])), weight, x, *biases]
    graph.op("TRANSPOSE_CONV", inputs, [product], padding=padding, strideH=strides[0], strideW=strides[1])
    quantized = graph.const(rng.integers(-127, 128, (units, units)).astype(np.int8), q=Q(0.01, 0))
    graph.op("FULLY_CONNECTED", [product, quantized], [result], act="none", keepNumDims=True)
    check_all(graph, [product, result], rng.normal(0, 1, shape).astype(np.float32))


@needs_fma
def test_weight_only_products_whose_results_are_quantized(rng):
    """XNNPACK multiplies by weights that it has dequantized before."""
    graph = Graph()
    x, product = graph.input((3, 40), "float32"), graph.tensor((3, 20), "float32")
    weights = graph.const(rng.integers(-127, 128, (20, 40)).astype(np.int8), q=Q(0.013, 0))
    floats, result = graph.tensor((20, 40), "float32"), graph.tensor((3, 20), "int16", Q(0.001, 0))
    graph.op("DEQUANTIZE", [weights], [floats])
    bias = graph.const(rng.normal(0, 1, 20).astype(np.float32))
    graph.op("FULLY_CONNECTED", [x, floats, bias], [product], act="none", keepNumDims=True)
    graph.op("QUANTIZE", [product], [result])
    check_all(graph, [product, result], rng.normal(0, 1, (3, 40)).astype(np.float32))


def test_sums_of_int16(rng):
    """LiteRT's optimized kernel rescales them in float32."""
    graph = Graph()
    x = graph.input((3, 8, 50), "int16", Q(3.05e-5, 0))
    output = graph.tensor((3, 50), "int16", Q(2.22e-4, 0))
    graph.op("SUM", [x, graph.const([1], "int32")], [output], keepDims=False)
    check(graph, output, rng.integers(-32768, 32768, (3, 8, 50)).astype(np.int16))


@pytest.mark.skipif("avx512f" not in host_features(), reason="XNNPACK has other kernels without AVX-512")
@pytest.mark.parametrize("built", [False, True])
def test_probabilities_below_the_smallest_normal_number(built):
    """LiteRT flushes them to 0. Close to that number it has other bits."""
    graph = Graph()
    x = graph.input((1, 64), "float32")
    output = graph.tensor((1, 64), "float32")
    graph.op("SOFTMAX", [x], [output], beta=1.0)
    quantized_too(graph)
    x = -np.concatenate([[0], np.linspace(60, 76, 31), np.linspace(90, 120, 32)])
    check(graph, output, x[None].astype(np.float32), built=built)


@pytest.mark.skipif("avx512f" not in host_features(), reason="XNNPACK has other kernels without AVX-512")
@pytest.mark.parametrize("length", [1, 5, 16, 50, 64, 197, 1000])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SOFTMAX", {"beta": 1.0}),
        ("LOGISTIC", {}),
        ("TANH", {}),
        ("GELU", {"approximate": False}),
        ("GELU", {"approximate": True}),
        ("ELU", {}),
        ("EXP", {}),
        ("LOG", {}),
        ("SIN", {}),
        ("COS", {}),
    ],
)
@pytest.mark.parametrize("built", [False, True])
def test_float_functions_of_quantized_models(rng, name, options, length, built):
    graph = Graph()
    x, y = graph.input((3, length), "float32"), graph.tensor((3, length), "float32")
    graph.op(name, [x], [y], **options)
    quantized_too(graph)
    check(graph, y, (rng.normal(0, 5, (3, length))).astype(np.float32), built=built)


@pytest.mark.parametrize(("name", "exponent"), [("LOGISTIC", -12), ("TANH", -12), ("TANH", -11), ("LOGISTIC", -11)])
def test_int16_functions_of_power_of_two_scales(name, exponent):
    """LiteRT's optimized kernels have gemmlowp's functions for them, its reference kernels a table."""
    graph, count = Graph(), 1 << 16
    x = graph.input((1, count), "int16", Q(2.0**exponent, 0))
    output = graph.tensor((1, count), "int16", Q(2.0**-15, 0))
    graph.op(name, [x], [output])
    check(graph, output, np.arange(-count // 2, count // 2).astype(np.int16)[None])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("ratio", [2.0**-10, 2.0**-10.5, 2.0**7.9])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
def test_scales_far_apart(rng, name, ratio, dtype):
    """XNNPACK adds scales from 2⁻¹⁰ to 2⁸ times that of the result, and multiplies from 2⁻¹⁶ on."""
    middle = 0 if dtype == "int8" else 128
    values = [
        rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (64, 64), endpoint=True).astype(dtype) for _ in "xy"
    ]
    graph = Graph()
    scales = (0.037 * ratio, 0.037 * min(ratio * 2, 1)) if name != "MUL" else (ratio * 2.0**-6, 0.037)
    operands = [graph.input((64, 64), dtype, Q(scale, middle + 3)) for scale in scales]
    output = graph.tensor((64, 64), dtype, Q(0.037, middle - 5))
    graph.op(name, operands, [output], act="none")
    check(graph, output, *values)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("scale", "alpha"), [(1.0, 0.3), (1.0, 0.001), (130.0, 0.1), (0.003, 0.5), (100.0, 1.4), (1.0, -0.7), (1.0, 0.0)]
)
def test_leaky_relu(scale, alpha, dtype):
    graph, middle = Graph(), 0 if dtype == "int8" else 128
    x = graph.input((1, 256), dtype, Q(0.05 * scale, middle + 7))
    output = graph.tensor((1, 256), dtype, Q(0.05, middle - 9))
    graph.op("LEAKY_RELU", [x], [output], alpha=alpha)
    check(graph, output, np.arange(256, dtype=np.uint8).view(dtype)[None])


@pytest.mark.parametrize("channel_dimension", [0, 3])
def test_uint8_weights_with_a_channel_dimension(rng, channel_dimension):
    """XNNPACK takes no uint8 tensor whose unused dimension of the channels is not 0."""
    graph, shape = Graph(), (1, 9, 9, 16)
    x = graph.input(shape, "uint8", Q(0.02, 128))
    weights = rng.integers(0, 256, (1, 3, 3, 16)).astype(np.uint8)
    bias = rng.integers(-500, 500, 16).astype(np.int32)
    operands = [x, graph.const(weights, q=Q(0.01, 120, channel_dimension)), graph.const(bias, q=Q(0.0002, 0))]
    output = graph.tensor(shape, "uint8", Q(0.0371, 121))
    window = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "depthMultiplier": 1}
    graph.op("DEPTHWISE_CONV_2D", operands, [output], act="none", padding="SAME", **window)
    check(graph, output, rng.integers(0, 256, shape).astype(np.uint8))


@pytest.mark.parametrize("odd", [0.0, np.inf, 1e-40])
@pytest.mark.parametrize("name", ["CONV_2D", "DEPTHWISE_CONV_2D"])
@pytest.mark.parametrize("numerics,kernels", [("float32", "default"), ("tflite", "reference")])
def test_weights_with_a_scale_that_is_no_normal_number(rng, name, odd, numerics, kernels):
    """As converters give channels that were 0 in calibration: LiteRT's own kernels compute the whole node."""
    check_odd_scales(rng, name, odd, numerics, kernels)


@pytest.mark.parametrize("channels", [3, 8, 12, 24])
def test_vectors_of_a_depthwise_convolution(rng, channels):
    """8 channels at once are rounded with midpoints up, the rest is not."""
    check_odd_scales(rng, "DEPTHWISE_CONV_2D", 0.0, "float32", "default", channels)


def check_odd_scales(rng, name, odd, numerics, kernels, channels=8):
    from tests.conformance.tflite_models.runner import invoke

    graph, depthwise = Graph(), name == "DEPTHWISE_CONV_2D"
    shape = (1, 16, 16, channels)
    scales = np.float32(rng.uniform(0.01, 0.05, channels))
    scales[1] = odd
    weights = rng.integers(-127, 128, (1, 1, 1, channels) if depthwise else (channels, 1, 1, channels)).astype(np.int8)
    operands = [graph.input(shape, "int8", Q(0.1, 3))]
    operands.append(graph.const(weights, q=Q(np.ones(channels), np.zeros(channels, int), 3 if depthwise else 0)))
    bias = rng.integers(-99, 99, channels)
    operands.append(graph.const(bias, "int32", Q(np.ones(channels), np.zeros(channels, int), 0)))
    for index, factor in ((1, np.float32(1)), (2, np.float32(0.1))):
        graph.packed.tensors[operands[index]].quantization.scale = (factor * scales).tolist()
    output = graph.output(shape, "int8", Q(0.1 if depthwise else 0.4, -5))
    dilation = {"dilationHFactor": 1, "dilationWFactor": 1, **({"depthMultiplier": 1} if depthwise else {})}
    graph.op(name, operands, [output], **WINDOW, **dilation)
    content, x = graph.build(), rng.integers(-128, 128, shape).astype(np.int8)
    ((expected,),) = invoke(content, [[x]], kernels, False)
    (found,) = qnn_ext.Interpreter(qnn_ext.from_tflite(content, numerics=numerics)).run([x]).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("numerics,kernels", [("float32", "default"), ("tflite", "reference")])
def test_hard_swish_of_floats(rng, numerics, kernels):
    """Bit for bit, the ends of its three parts among them."""
    from tests.conformance.tflite_models.runner import invoke

    x = (3 * rng.standard_normal((1, 4099))).astype(np.float32)
    x[0, :8] = [-3, 3, 0, -0.0, np.nextafter(np.float32(-3), 0), np.nextafter(np.float32(3), 0), 50, -50]
    graph = Graph()
    graph.op("HARD_SWISH", [graph.input(x.shape, "float32")], [graph.output(x.shape, "float32")])
    content = graph.build()
    ((expected,),) = invoke(content, [[x]], kernels, False)
    module = qnn_ext.from_tflite(content, numerics=numerics)
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        (found,) = runner.run([x]).values()
        np.testing.assert_array_equal(found, expected)
