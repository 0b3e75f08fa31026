"""The quantized models of ../shared/models/tflite, by name."""

REAL = (
    "ad01_int8",
    "deeplabv3_mnv2_dm05_pascal_quant",
    "keras_lstm_mnist_ptq",
    "kws_ref_model",
    "micro_speech_quantized",
    "mobilenet_v1_0.25_128_quant",
    "mobilenet_v1_0.75_192_quant",
    "mobilenet_v2_1.0_224_quant",
    "mobilenet_v2_quantized_1x3x224x224",
    "pretrainedResnet_quant",
    "tf2_mobilenet_v2_1.0_224_ptq",
    "vww_96_int8",
)
