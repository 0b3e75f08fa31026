"""QConfig: defaults, contradictions, overrides, skips, the context manager."""

import threading
from dataclasses import fields

import pytest

from qnn_ext.errors import QuantizationError
from qnn_ext.quantize import QConfig, current_config, qconfig

RELAY = {  # apache/tvm v0.19, relay/quantize/quantize.py: the fields of QConfig and their defaults
    "nbit_input": 8,
    "nbit_weight": 8,
    "nbit_activation": 32,
    "dtype_input": "int8",
    "dtype_weight": "int8",
    "dtype_activation": "int32",
    "calibrate_mode": "global_scale",
    "global_scale": 8.0,
    "weight_scale": "power2",
    "skip_dense_layer": True,
    "skip_conv_layers": (0,),
    "do_simulation": False,
    "round_for_shift": True,
    "debug_enabled_ops": None,
    "rounding": "UPWARD",
    "calibrate_chunk_by": -1,
    "partition_conversions": "disabled",
}


def test_relays_fields_and_defaults():
    relay = QConfig.relay()
    assert len(RELAY) == 17
    assert {name: getattr(relay, name) for name in RELAY} == RELAY
    assert [item.name for item in fields(QConfig)][:17] == list(RELAY)
    assert QConfig.relay(skip_conv_layers=None, global_scale=4.0).global_scale == 4.0


BAD = [
    ({"nbit_input": 9}, "nbit_input must be a whole number from 2 to 8, found 9"),
    ({"nbit_weight": 1}, "nbit_weight"),
    ({"nbit_weight": True}, "nbit_weight"),
    ({"nbit_activation": 16}, "nbit_activation must be a whole number from 2 to 8 or 32"),
    ({"dtype_input": "int4"}, "dtype_input must be one of 'auto', 'int8', 'uint8', found 'int4'"),
    ({"dtype_weight": "uint8"}, "dtype_weight"),
    ({"calibrate_mode": "kl"}, "calibrate_mode must be one of .*'kl_divergence'"),
    ({"global_scale": 0.0}, "global_scale must be a finite number above 0"),
    ({"global_scale": float("nan")}, "global_scale"),
    ({"weight_scale": "log"}, "weight_scale"),
    ({"skip_dense_layer": 1}, "skip_dense_layer must be one of True, False"),
    ({"skip_conv_layers": (-1,)}, "skip_conv_layers"),
    ({"skip_conv_layers": "0"}, "skip_conv_layers"),
    ({"rounding": "DOWN"}, "rounding must be one of"),
    ({"calibrate_chunk_by": 0}, "calibrate_chunk_by"),
    ({"partition_conversions": "on"}, "partition_conversions"),
    ({"percentile": 50}, "percentile"),
    ({"bins": 64}, "bins"),
    ({"momentum": 1.0}, "momentum"),
    ({"first_layer": "int4"}, "first_layer"),
    ({"debug_enabled_ops": "nn.conv2d"}, "debug_enabled_ops"),
    ({"float_functions": ["exp"]}, "float_functions"),
    ({"overrides": {"conv*": {"nbits": 8}}}, r"overrides\['conv\*'\]: a layer has no field 'nbits'"),
    ({"overrides": {"conv*": {"nbit_weight": 0}}}, r"overrides\['conv\*'\]\['nbit_weight'\] must be"),
    ({"overrides": {"conv*": {"range": (1.0, 1.0)}}}, "low < high"),
    ({"overrides": ["conv"]}, "overrides must map"),
    ({"nbit_activation": 8}, "contradict"),
    ({"dtype_activation": "int8"}, "cannot have 32 bits"),
    ({"quantization_formula": "cambricon", "symmetric": False}, "cambricon"),
    ({"quantization_formula": "cambricon", "dtype_input": "uint8"}, "cambricon"),
    ({"quantization_formula": "cambricon", "dtype_activation": "uint8", "nbit_activation": 8}, "uint8 needs one"),
    ({"overrides": {"c*": {"nbit_activation": 8}}}, r"overrides\['c\*'\]: dtype_activation='int32'"),
    ({"quantization_formula": "cambricon", "overrides": {"c": {"symmetric": False}}}, r"overrides\['c'\]"),
    ({"dynamic": True, "do_simulation": True}, "finds ranges only at run time"),
    ({"dynamic": True, "calibrate_mode": "mse"}, "dynamic"),
    ({"dynamic": True, "partition_conversions": "enabled"}, "dynamic"),
    ({"do_simulation": True, "partition_conversions": "fully_integral"}, "do_simulation"),
    ({"nbits": 8}, "no field 'nbits'; the fields are nbit_input"),
]


@pytest.mark.parametrize("values,message", BAD, ids=[str(values) for values, _ in BAD])
def test_wrong_values(values, message):
    with pytest.raises(QuantizationError, match=message):
        QConfig.of(**values)


def test_activations_of_eight_bits():
    config = QConfig(nbit_activation=8, dtype_activation="uint8")
    assert config.layer("c", "nn.conv2d", 0).nbit_activation == 8


@pytest.mark.parametrize(
    "fields,dtype",
    [
        ({"target": "x86-64"}, "uint8"),
        ({"target": {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}}, "int8"),
        ({"target": "x86-64", "symmetric": True}, "int8"),
        ({"target": "x86-64", "quantization_formula": "cambricon"}, "int8"),
        ({"target": "x86-64", "dtype_input": "int8"}, "int8"),
        ({"symmetric": True, "dtype_input": "uint8"}, "uint8"),
    ],
)
def test_the_target_chooses_the_dtype(fields, dtype):
    assert QConfig(**fields).layer("c", "nn.conv2d", 0).dtype_input == dtype


def test_symmetric_is_resolved():
    assert not QConfig().layer("c", "nn.conv2d", 0).symmetric
    assert QConfig(quantization_formula="cambricon").layer("c", "nn.conv2d", 0).symmetric
    config = QConfig(overrides={"c": {"symmetric": True}}, target="x86-64")
    assert config.layer("c", "nn.conv2d", 0).dtype_input == "int8"


def test_skips():
    config = QConfig(skip_conv_layers=[1], skip_dense_layer=True)
    assert [config.layer(str(i), "nn.conv2d", i).quantized for i in range(3)] == [True, False, True]
    assert not config.layer("d", "nn.dense").quantized
    assert config.layer("d", "nn.batch_matmul").quantized
    assert config.layer("d", "add", 1).quantized


def test_skips_beyond_the_model():
    QConfig(skip_conv_layers=[1]).check_convolutions(2)
    with pytest.raises(QuantizationError, match="no convolution 2; this model has 2"):
        QConfig(skip_conv_layers=[2]).check_convolutions(2)
    QConfig.relay().check_convolutions(0)  # Relay's default skips the first convolution where there is one


def test_first_and_last_layer():
    config = QConfig(first_layer="float16", last_layer="float32")
    assert config.layer("a", "nn.conv2d", 0, first=True).precision == "float16"
    assert config.layer("b", "nn.conv2d", 1).precision == "int8"
    assert config.layer("c", "nn.dense", last=True).precision == "float32"


def test_enabled_operators():
    config = QConfig(debug_enabled_ops=["nn.conv2d", "add"])
    assert config.layer("a", "conv2d", 0).quantized
    assert config.layer("b", "relax.add").quantized
    assert not config.layer("c", "nn.dense").quantized


def test_overrides_the_later_pattern_wins():
    config = QConfig(
        skip_conv_layers=[0],
        overrides={"block1.*": {"precision": "float32"}, "*.conv2": {"precision": "int8", "nbit_weight": 4}},
    )
    assert config.layer("block1.conv1", "nn.conv2d", 1).precision == "float32"
    assert config.layer("block1.conv2", "nn.conv2d", 0).quantized
    assert config.layer("block1.conv2", "nn.conv2d", 0).nbit_weight == 4
    assert config.layer("block2.conv1", "nn.conv2d", 2).nbit_weight == 8


def test_a_pattern_without_layers():
    config = QConfig(overrides={"conv_*": {"precision": "float32"}})
    config.check_patterns(["conv_1", "dense"])
    with pytest.raises(QuantizationError, match=r"pattern 'conv_\*' matches no layer; .* 'dense', 'head'"):
        config.check_patterns(["dense", "head"])


def test_the_context_nests_and_ends():
    assert current_config() is None
    with qconfig(global_scale=2.0) as outer:
        with qconfig(rounding="UPWARD") as inner:
            assert (inner.global_scale, inner.rounding) == (2.0, "UPWARD")
            assert current_config() is inner
        assert current_config() is outer
        assert outer.rounding == "TONEAREST_EVEN"
    assert current_config() is None


def test_the_context_is_entered_again():
    """Also inside itself; fields that it does not set are those of wherever it is entered."""
    context = qconfig(nbit_weight=4)
    with context as outer, qconfig(nbit_input=6), context as inner:
        assert (outer.nbit_weight, outer.nbit_input) == (4, 8)
        assert (inner.nbit_weight, inner.nbit_input) == (4, 6)
    with context:
        assert current_config() == QConfig(nbit_weight=4)
    assert current_config() is None


def test_the_context_ends_after_an_error():
    with pytest.raises(QuantizationError), qconfig(global_scale=2.0), qconfig(bins=1):
        pass
    assert current_config() is None


def test_a_config_as_starting_point():
    with qconfig(rounding="UPWARD"), qconfig(QConfig.relay(), bins=256) as config:
        assert (config.calibrate_mode, config.bins) == ("global_scale", 256)


def test_threads_do_not_see_each_other():
    seen = []
    with qconfig(global_scale=2.0):
        thread = threading.Thread(target=lambda: seen.append(current_config()))
        thread.start()
        thread.join()
    assert seen == [None]
