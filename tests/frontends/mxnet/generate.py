"""Writes data/*.npz.xz: small models and MXNet's outputs. Run with an interpreter that has mxnet 1.9.1 (Python 3.8):

    pip install mxnet==1.9.1 numpy==1.23.5 scipy==1.10.1
    python tests/frontends/mxnet/generate.py

For each case an archive holds "<case>/symbol" and "<case>/params" (the files' bytes), "<case>/x" and "<case>/y", and
for quantized networks "<case>/y_fp32", the float network's output. Where MXNet cannot run a graph there is no y.
"""

import io
import json
import logging
import lzma
import os
import sys
import tempfile
import zlib
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"  # run the graph as written

import mxnet as mx
import numpy as np
from mxnet.contrib import quantization

logging.disable(logging.CRITICAL)
DATA = Path(__file__).parent / "data"
SHAPE = (1, 4, 6, 5)
sym = mx.sym
DATA_INPUT = sym.Variable("data")


def pairs(one, two):
    return zip(one, two)  # noqa: B905  (Python 3.8 has no strict)


class Case:
    """A float symbol with random parameters."""

    def __init__(self, name, symbol, shape=SHAPE, positive=False):
        self.name = name
        self.symbol = symbol
        self.random = np.random.RandomState(zlib.crc32(name.encode()))
        self.shape = shape
        self.positive = positive
        shapes, _, aux_shapes = symbol.infer_shape(data=shape)
        self.args = {n: self.parameter(n, s) for n, s in pairs(symbol.list_arguments(), shapes) if n != "data"}
        self.aux = {n: self.parameter(n, s) for n, s in pairs(symbol.list_auxiliary_states(), aux_shapes)}

    def parameter(self, name, shape):
        if name.endswith(("gamma", "var")):
            value = self.random.uniform(0.5, 1.5, shape)
        elif name.endswith("weight"):
            value = self.random.randn(*shape) / np.sqrt(np.prod(shape[1:]))
        else:
            value = self.random.randn(*shape) / 4
        return mx.nd.array(value, dtype="float32")

    def data(self, count):
        values = self.random.randn(count, *self.shape[1:]).astype(np.float32)
        return np.abs(values) if self.positive else values

    def quantized(self, **options):
        """(symbol, args, aux) by MXNet's own quantizer."""
        settings = dict(calib_mode="naive", quantized_dtype="auto", quantize_mode="smart")
        settings.update(options)
        if settings["calib_mode"] != "none":
            settings["calib_data"] = mx.io.NDArrayIter(self.data(32), batch_size=self.shape[0])
            settings["num_calib_examples"] = 32
        return quantization.quantize_model_mkldnn(
            sym=self.symbol,
            arg_params=dict(self.args),
            aux_params=dict(self.aux),
            data_names=("data",),
            label_names=None,
            ctx=mx.cpu(),
            **settings,
        )


def run(symbol, args, aux, x):
    module = mx.mod.Module(symbol, label_names=None, context=mx.cpu())
    module.bind(for_training=False, data_shapes=[("data", x.shape)])
    module.set_params(args, aux, allow_missing=False)
    module.forward(mx.io.DataBatch([mx.nd.array(x)], None), is_train=False)
    return [output.asnumpy() for output in module.get_outputs()]


def packed(symbol, args, aux):
    """The bytes of -symbol.json and .params."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p"
        named = {"arg:" + k: v for k, v in args.items()}
        named.update({"aux:" + k: v for k, v in aux.items()})
        mx.nd.save(str(path), named)
        params = path.read_bytes()
    text = json.dumps(json.loads(symbol.tojson()), separators=(",", ":"))
    return np.frombuffer(text.encode(), np.uint8), np.frombuffer(params, np.uint8)


def record(arrays, name, case, model):
    x = case.data(case.shape[0])
    arrays[name + "/symbol"], arrays[name + "/params"] = packed(*model)
    arrays[name + "/x"] = x
    try:
        arrays[name + "/y"] = run(*model, x)[0]
    except mx.MXNetError as error:
        print("   MXNet does not run", name, str(error).strip().splitlines()[-1][:150])


# ---- float networks to quantize ----------------------------------------------------------------------------------


def conv(x, name, filters=8, kernel=3, pad=None, **options):
    pad = kernel // 2 if pad is None else pad
    return sym.Convolution(x, num_filter=filters, kernel=(kernel, kernel), pad=(pad, pad), name=name, **options)


def relu(x):
    return sym.Activation(x, act_type="relu")


def quantizable():
    """Networks by name, each around one form of a fused operator."""
    data = DATA_INPUT
    bn = lambda x, name, **o: sym.BatchNorm(x, name=name, **o)  # noqa: E731
    first = relu(conv(data, "first"))
    yield "conv", conv(data, "c"), {}
    yield "conv_uint8_data", conv(data, "c"), {"positive": True}
    yield "conv_no_bias", conv(data, "c", no_bias=True), {}
    yield "conv_relu", relu(conv(data, "c")), {}
    yield "conv_relu6", sym.clip(conv(data, "c"), a_min=0, a_max=6), {}
    yield "conv_clip_low", sym.clip(conv(data, "c"), a_min=0, a_max=0.5), {}
    yield "conv_leaky", sym.LeakyReLU(conv(data, "c"), slope=0.1), {}
    yield "conv_leaky_conv", conv(sym.LeakyReLU(conv(data, "c"), slope=0.1), "d"), {}
    yield "conv_sigmoid", sym.Activation(conv(data, "c"), act_type="sigmoid"), {}
    yield "conv_bn", bn(conv(data, "c", no_bias=True), "b", fix_gamma=False, eps=1e-5), {}
    yield "conv_bias_bn_relu", relu(bn(conv(data, "c"), "b", eps=2e-2)), {}
    yield "conv_bn_relu6", sym.clip(bn(conv(data, "c"), "b", fix_gamma=False), a_min=0, a_max=6), {}
    yield "conv_stride_dilate", conv(data, "c", stride=(2, 1), dilate=(1, 2)), {}
    yield "conv_groups", conv(data, "c", num_group=2), {}
    yield "conv_groups_bn_relu", relu(bn(conv(data, "c", num_group=2), "b", fix_gamma=False)), {}
    yield "conv_depthwise", conv(first, "c", num_group=8), {}
    yield "conv_sum", conv(first, "c") + first, {}
    yield "conv_sum_relu", relu(conv(first, "c") + first), {}
    yield "conv_int8_sum_relu", relu(conv(first, "c") + conv(first, "d")), {}
    yield "conv_bn_sum_relu", relu(bn(conv(first, "c", no_bias=True), "b", fix_gamma=False) + first), {}
    yield "conv_relu_sum", relu(conv(first, "c")) + first, {}
    yield "conv_sum_first", first + conv(first, "c"), {}
    yield "conv_int8_sum", conv(first, "c") + conv(first, "d"), {}
    yield "conv_relu6_sum", sym.clip(conv(first, "c"), a_min=0, a_max=6) + first, {}
    for kind in ("max", "avg"):
        for convention in ("valid", "full"):
            options = dict(pool_type=kind, pooling_convention=convention)
            padded = sym.Pooling(first, kernel=(3, 3), stride=(2, 2), pad=(1, 1), **options)
            yield f"pool_{kind}_{convention}", conv(padded, "c"), {}
            plain = sym.Pooling(conv(data, "first"), kernel=(2, 2), stride=(2, 2), **options)
            yield f"pool_int8_{kind}_{convention}", conv(plain, "c"), {}
        pooled = sym.Pooling(first, kernel=(1, 1), global_pool=True, pool_type=kind)
        yield "pool_global_" + kind, conv(pooled, "c", kernel=1), {}
    exclusive = sym.Pooling(first, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="avg", count_include_pad=False)
    yield "pool_avg_exclusive", conv(exclusive, "c"), {}
    yield "concat_uint8", conv(sym.Concat(first, relu(conv(first, "d", 4)), dim=1), "c"), {}
    yield "concat_mixed", conv(sym.Concat(first, conv(first, "d", 4), data, dim=1), "c"), {}
    flat = sym.Flatten(first)
    dense = lambda x, name="f", **o: sym.FullyConnected(x, num_hidden=6, name=name, **o)  # noqa: E731
    yield "dense", dense(flat), {}
    yield "dense_no_bias", dense(flat, no_bias=True), {}
    yield "dense_int8_data", dense(data), {}
    yield "dense_dense", dense(dense(flat), "g"), {}
    yield "dense_relu_dense", dense(relu(dense(flat)), "g"), {}
    yield "dense_relu", relu(dense(flat)), {}
    yield "dense_sigmoid_dense", dense(sym.Activation(dense(flat), act_type="sigmoid"), "g"), {}
    yield "dense_tanh_dense", dense(sym.Activation(dense(flat), act_type="tanh"), "g"), {}
    yield "dense_softrelu_dense", dense(sym.Activation(dense(flat), act_type="softrelu"), "g"), {}
    yield "dense_abs_dense", dense(sym.abs(dense(flat)), "g"), {}
    yield "dense_square_dense", dense(sym.square(dense(flat)), "g"), {}
    yield "dense_clip_dense", dense(sym.clip(dense(flat), a_min=0, a_max=0.3), "g"), {}
    yield "dense_not_flat", dense(sym.Reshape(first, shape=(0, -1, 4)), flatten=False), {}
    yield "bn_alone", conv(bn(first, "b", fix_gamma=False), "c"), {}
    yield "bn_alone_fixed", conv(bn(first, "b", eps=2e-2), "c"), {}
    yield "relu_alone", conv(relu(bn(first, "b", fix_gamma=False)), "c"), {}
    pools = [sym.Pooling(first, kernel=(3, 3), pad=(1, 1), pool_type=kind) for kind in ("max", "avg")]
    yield "add_alone", conv(pools[0] + pools[1], "c"), {}
    yield "residual_preact", conv(relu(bn(conv(first, "d") + first, "b", fix_gamma=False)), "c"), {}


INT8_TOO = (
    "conv_relu",
    "conv_int8_sum_relu",
    "pool_max_full",
    "concat_mixed",
    "dense_relu_dense",
    "bn_alone",
    "add_alone",
)

UNCALIBRATED = ("conv", "pool_max_full", "pool_int8_avg_valid", "concat_mixed", "dense", "add_alone", "bn_alone")

FUSED_FLOAT = (
    "conv_bn_relu6",
    "conv_bn_sum_relu",
    "conv_sum_first",
    "conv_leaky",
    "dense_relu_dense",
    "dense_abs_dense",
)


def operators():
    """Quantized operators written by hand: with ranges as MXNet's own quantizer sets them."""
    for left in ("int8", "uint8"):
        for right in ("int8", "uint8"):
            for calibrated in (True, False):
                a, b = quantize(left, 3.3), quantize(right, 2.1)
                options = dict(min_calib_range=-4.7, max_calib_range=4.1) if calibrated else {}
                result = sym.contrib.quantized_elemwise_add(a[0], b[0], a[1], a[2], b[1], b[2], **options)
                name = "add_{}_{}_{}".format(left, right, "calibrated" if calibrated else "int32")
                if calibrated:
                    yield name, dequantize(result)
                else:  # only requantize reads int32
                    again = sym.contrib.requantize(*result, min_calib_range=-3.1, max_calib_range=2.9)
                    yield name + "_requantized", dequantize(again)
                    unsigned = sym.contrib.requantize(*result, min_calib_range=0, max_calib_range=2.9, out_type="auto")
                    yield name + "_requantized_uint8", dequantize(unsigned)
    yield "act_int8", dequantize(sym.contrib.quantized_act(*quantize("int8", 3.3), act_type="relu"))
    for dtype in ("int8", "uint8"):
        for kind in ("max", "avg"):
            for convention in ("valid", "full"):
                for inclusive in (True, False):
                    q = quantize(dtype, 3.3)
                    result = sym.contrib.quantized_pooling(
                        *q,
                        kernel=(3, 3),
                        stride=(2, 2),
                        pad=(1, 0),
                        pool_type=kind,
                        pooling_convention=convention,
                        count_include_pad=inclusive,
                    )
                    yield f"pool_{dtype}_{kind}_{convention}_{inclusive}", dequantize(result)
        yield "flatten_" + dtype, dequantize(sym.contrib.quantized_flatten(*quantize(dtype, 3.3)))
        joined = [quantize(dtype, 3.3), quantize("int8", 2.1), quantize("int8", 3.3)]
        flat = [q[0] for q in joined] + [edge for q in joined for edge in (q[1], q[2])]
        yield "concat_" + dtype, dequantize(sym.contrib.quantized_concat(*flat, num_args=3, dim=1))


def float_operators():
    """Float operators as in Gluon networks, each in all its forms."""
    data = DATA_INPUT
    for kind in ("relu", "sigmoid", "tanh", "softrelu", "softsign"):
        yield "activation_" + kind, sym.Activation(data, act_type=kind)
    for kind in ("leaky", "elu", "selu", "gelu", "prelu"):
        yield "leaky_relu_" + kind, sym.LeakyReLU(data, act_type=kind, slope=0.3)
    for name in ("abs", "exp", "floor", "ceil", "negative", "square", "erf", "sigmoid", "tanh", "relu", "sin", "cos"):
        yield name, getattr(sym, name)(data)
    for name in ("log", "sqrt", "rsqrt"):
        yield name, getattr(sym, name)(sym.abs(data) + 0.5)
    yield "hard_sigmoid", sym.hard_sigmoid(data)
    yield "clip", sym.clip(data, a_min=-0.5, a_max=0.8)
    yield "softmax", sym.softmax(data, axis=1)
    yield "softmax_temperature", sym.softmax(data, temperature=2.5)
    yield "log_softmax", sym.log_softmax(data)
    yield "softmax_activation", sym.SoftmaxActivation(sym.Flatten(data))
    yield "softmax_activation_channel", sym.SoftmaxActivation(data, mode="channel")
    for name in ("elemwise_add", "elemwise_sub", "elemwise_mul", "broadcast_maximum", "broadcast_minimum"):
        yield name, getattr(sym, name)(data, sym.tanh(data))
    yield "elemwise_div", sym.elemwise_div(data, sym.exp(data))
    yield "broadcast_mul", sym.broadcast_mul(data, sym.mean(data, axis=(2, 3), keepdims=True))
    yield "broadcast_power", sym.broadcast_power(sym.exp(data), sym.tanh(data))
    for name, value in (
        ("plus", data + 2),
        ("minus", data - 2),
        ("rminus", 2 - data),
        ("mul", data * 3),
        ("div", data / 3),
        ("rdiv", 3 / sym.exp(data)),
        ("power", sym.exp(data) ** 1.5),
    ):
        yield "scalar_" + name, value
    yield "scalar_maximum", sym.maximum(data, 0.1)
    yield "scalar_minimum", sym.minimum(data, 0.1)
    yield "add_n", sym.add_n(data, sym.tanh(data), data)
    for name in ("mean", "sum", "max", "min"):
        yield "reduce_" + name, getattr(sym, name)(data, axis=(1, 3))
        yield "reduce_keepdims_" + name, getattr(sym, name)(data, axis=1, keepdims=True)
        yield "reduce_exclude_" + name, getattr(sym, name)(data, axis=1, exclude=True)
    yield "reduce_all", sym.mean(data)
    yield "convolution", conv(data, "c", stride=(2, 1), dilate=(1, 2))
    yield "convolution_groups", conv(data, "c", num_group=2, no_bias=True)
    yield "convolution_bn", sym.BatchNorm(conv(data, "c"), name="b", fix_gamma=False)
    yield "convolution_1d", sym.Convolution(sym.Reshape(data, shape=(0, 0, -1)), kernel=(3,), num_filter=5, name="c")
    yield "convolution_3d", sym.Convolution(sym.expand_dims(data, 2), kernel=(1, 3, 3), num_filter=5, name="c")
    yield (
        "deconvolution",
        sym.Deconvolution(data, kernel=(3, 3), stride=(2, 2), pad=(1, 1), adj=(1, 0), num_filter=5, name="c"),
    )
    yield (
        "deconvolution_groups",
        sym.Deconvolution(data, kernel=(3, 2), num_group=2, num_filter=6, no_bias=False, name="c"),
    )
    yield "dense", sym.FullyConnected(data, num_hidden=7, name="f")
    yield "dense_not_flat", sym.FullyConnected(data, num_hidden=7, flatten=False, no_bias=True, name="f")
    yield "dot", sym.dot(sym.Flatten(data), sym.Flatten(data), transpose_b=True)
    yield (
        "batch_dot",
        sym.batch_dot(sym.Reshape(data, shape=(-3, 0, 0)), sym.Reshape(data, shape=(-3, 0, 0)), transpose_a=True),
    )
    yield "batch_norm", sym.BatchNorm(data, name="b", fix_gamma=False, eps=1e-2)
    yield "batch_norm_axis", sym.BatchNorm(data, name="b", axis=3)
    yield "layer_norm", sym.LayerNorm(data, sym.Variable("b_gamma"), sym.Variable("b_beta"))
    yield "instance_norm", sym.InstanceNorm(data, sym.Variable("b_gamma"), sym.Variable("b_beta"))
    for mode in ("instance", "channel", "spatial"):
        yield "l2_" + mode, sym.L2Normalization(data, mode=mode)
    yield "lrn", sym.LRN(data, nsize=3, alpha=0.1)
    for kind in ("max", "avg"):
        for convention in ("valid", "full"):
            for inclusive in (True, False):
                yield (
                    f"pool_{kind}_{convention}_{inclusive}",
                    sym.Pooling(
                        data,
                        kernel=(3, 3),
                        stride=(2, 2),
                        pad=(1, 1),
                        pool_type=kind,
                        pooling_convention=convention,
                        count_include_pad=inclusive,
                    ),
                )
        yield "pool_global_" + kind, sym.Pooling(data, kernel=(1, 1), pool_type=kind, global_pool=True)
    yield "adaptive_pool", sym.contrib.AdaptiveAvgPooling2D(data, output_size=(3, 2))
    yield "flatten", sym.Flatten(data)
    for index, shape in enumerate([(0, -1), (-2,), (0, -3, 0), (0, -4, 2, -1, -2), (-3, -3), (-1, 2, 0)]):
        yield f"reshape_{index}", sym.Reshape(data, shape=shape)
    yield "reshape_reverse", sym.Reshape(data, shape=(-1, 0), reverse=True)
    yield "transpose", sym.transpose(data, axes=(0, 2, 3, 1))
    yield "transpose_all", sym.transpose(data)
    yield "swap_axis", sym.SwapAxis(data, dim1=1, dim2=3)
    yield "expand_squeeze", sym.squeeze(sym.expand_dims(data, axis=2) * 2, axis=0)
    yield "broadcast_to", sym.broadcast_to(sym.mean(data, axis=1, keepdims=True), shape=(0, 3, 0, 0))
    yield "concat", sym.Concat(data, data * 2, dim=2)
    yield "stack", sym.stack(data, data * 2, axis=1)
    parts = sym.SliceChannel(data, num_outputs=2, axis=1)
    yield "split", parts[1] * 2 + parts[0]
    singles = sym.SliceChannel(data, num_outputs=4, axis=1, squeeze_axis=True)
    yield "split_squeeze", singles[3] - singles[0]
    yield "slice_axis", sym.slice_axis(data, axis=2, begin=1, end=-1)
    yield "slice_axis_open", sym.slice_axis(data, axis=-1, begin=-3, end=None)
    yield "slice", sym.slice(data, begin=(None, 1, 0), end=(None, 3, -1), step=(None, 1, 2))
    yield "slice_like", sym.slice_like(data, sym.slice_axis(data, axis=3, begin=0, end=2), axes=(3,))
    for mode in ("constant", "edge", "reflect"):
        yield "pad_" + mode, sym.Pad(data, mode=mode, pad_width=(0, 0, 0, 0, 1, 2, 2, 1), constant_value=0.5)
    yield "upsampling", sym.UpSampling(data, scale=2, sample_type="nearest")
    yield "embedding", sym.Embedding(sym.floor(sym.abs(data) * 3), input_dim=5, output_dim=3, name="e")
    yield "dropout", sym.Dropout(data * 2)
    yield "cast", sym.Cast(data * 3, dtype="int32")


def quantize(dtype, limit):
    low = -limit if dtype == "int8" else 0.0
    name = "q_{}_{}".format(dtype, str(limit).replace(".", "_"))
    q = sym.contrib.quantize_v2(DATA_INPUT, out_type=dtype, min_calib_range=low, max_calib_range=limit, name=name)
    return [q[0], q[1], q[2]]


def dequantize(q):
    return sym.contrib.dequantize(q[0], q[1], q[2])


def main():
    DATA.mkdir(exist_ok=True)
    arrays = {}
    for name, symbol, options in quantizable():
        case = Case(name, symbol, **options)
        variants = {"auto": {}}
        if name in INT8_TOO:
            variants["int8"] = {"quantized_dtype": "int8"}
        if name.startswith("dense"):
            variants["channel"] = {"quantize_granularity": "channel-wise"}
        for variant, settings in variants.items():
            full = name + "/" + variant
            try:
                record(arrays, full, case, case.quantized(**settings))
            except Exception as error:  # MXNet's quantizer refuses the network
                print("   not quantized:", full, str(error).strip().splitlines()[-1][:150])
    write("fused", arrays)
    arrays = {}
    for name, symbol, options in quantizable():
        if name.startswith(UNCALIBRATED):
            case = Case(name, symbol, **options)
            try:
                record(arrays, name, case, case.quantized(calib_mode="none"))
            except mx.MXNetError as error:
                print("   not quantized:", name, str(error).strip().splitlines()[-1][:150])
    write("uncalibrated", arrays)
    arrays = {}
    for name, symbol in operators():
        record(arrays, name, Case(name, symbol, shape=(1, 4, 7, 6)), (symbol, {}, {}))
    write("operators", arrays)
    arrays = {}
    for name, symbol in float_operators():
        case = Case(name, symbol, shape=(1, 4, 6, 5))
        record(arrays, name, case, (symbol, case.args, case.aux))
    for name, symbol, options in quantizable():
        if name in FUSED_FLOAT:
            case = Case(name, symbol, **options)
            record(arrays, "fused_" + name, case, (symbol.get_backend_symbol("MKLDNN"), case.args, case.aux))
    write("float", arrays)


def write(name, arrays):
    path = DATA / (name + ".npz.xz")
    plain = io.BytesIO()
    np.savez(plain, **arrays)
    path.write_bytes(lzma.compress(plain.getvalue(), preset=9))  # one stream: the cases are similar
    cases = len([key for key in arrays if key.endswith("/x")])
    print(f"{path.name:12} {cases:4d} cases {path.stat().st_size:8,d} bytes")


if __name__ == "__main__":
    sys.exit(main())
