"""Train the bundled digit classifiers and quantize them with the TFLite converter.

Data: scikit-learn's digits, 1797 images of 8×8 pixels with values 0..16, a quarter of them held out. Models: a small
CNN with the building blocks of a mobile network, written in every numeric format TFLite knows, and a small LSTM that
reads an image row by row. Input of every model: pixel / 16, so [0, 1].

    pip install -r scripts/requirements-train.txt
    python -m scripts.train_digits --out qnn_ext/data

The seed is fixed and TensorFlow's deterministic kernels are on: a second run on the same machine writes the same bytes.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tf_keras as keras  # Keras 2: its LSTM converts to UNIDIRECTIONAL_SEQUENCE_LSTM, that of Keras 3 to a WHILE loop
from ai_edge_litert.interpreter import Interpreter

from .digits_data import SEED, Digits, load_split, shifted, to_real

BATCH = 32
CALIBRATION_IMAGES = 400


# ---------------------------------------------------------------------------------------------------------------------
# The CNN, written once: `ops` decides whether a layer is trained (TrainOps) or simulates uint8 (FakeQuantOps).


def cnn(x, ops):
    """Conv stem, depthwise-separable block, inverted residual, two poolings, two dense layers, softmax."""
    x = ops.conv("stem", x, channels=16, kernel=3)
    x = ops.depthwise("separable_depthwise", x, stride=2)
    x = shortcut = ops.conv("separable_pointwise", x, channels=32)
    x = ops.conv("residual_expand", x, channels=64)
    x = ops.depthwise("residual_depthwise", x)
    x = ops.conv("residual_project", x, channels=32, relu6=False)
    x = ops.add("residual_add", x, shortcut)
    x = ops.average_pool("pool", x)
    x = ops.conv("head", x, channels=48)
    x = ops.global_mean("mean", x)
    x = ops.dense("hidden", x, units=32, relu=True)
    x = ops.dense("logits", x, units=10)
    return ops.softmax("probabilities", x)


class TrainOps:
    """The layers as Keras trains them: convolutions have a batch normalization, which the converter folds away."""

    def conv(self, name, x, channels, kernel=1, relu6=True):
        x = keras.layers.Conv2D(channels, kernel, padding="same", use_bias=False, name=name)(x)
        return self._normalize(name, x, relu6)

    def depthwise(self, name, x, stride=1):
        x = keras.layers.DepthwiseConv2D(3, stride, padding="same", use_bias=False, name=name)(x)
        return self._normalize(name, x, relu6=True)

    @staticmethod
    def _normalize(name, x, relu6):
        x = keras.layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)
        return keras.layers.ReLU(6.0, name=f"{name}_relu6")(x) if relu6 else x

    def add(self, name, a, b):
        return keras.layers.ReLU(name=f"{name}_relu")(keras.layers.Add(name=name)([a, b]))

    def average_pool(self, name, x):
        return keras.layers.AveragePooling2D(2, name=name)(x)

    def global_mean(self, name, x):
        return keras.layers.GlobalAveragePooling2D(name=name)(x)

    def dense(self, name, x, units, relu=False):
        return keras.layers.Dense(units, activation="relu" if relu else None, name=name)(x)

    def softmax(self, name, x):
        return keras.layers.Softmax(name=name)(x)


def folded_weights(model: keras.Model) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """(kernel, bias) by layer name, batch normalization folded in: γ(w·x − μ)/√(σ²+ε) + β = w'·x + b'."""
    weights = {}
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dense):
            weights[layer.name] = tuple(layer.get_weights())
        elif isinstance(layer, (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)):
            (kernel,) = layer.get_weights()
            norm = model.get_layer(f"{layer.name}_norm")
            gamma, beta, mean, variance = norm.get_weights()
            factor = gamma / np.sqrt(variance + norm.epsilon)
            depthwise = isinstance(layer, keras.layers.DepthwiseConv2D)  # kernel (H, W, C, 1) rather than (H, W, C, O)
            weights[layer.name] = kernel * (factor[:, None] if depthwise else factor), beta - mean * factor
    return weights


class FakeQuantOps:
    """The trained layers with per-tensor fake quantization, the form that the converter turns into a uint8 model.

    `ranges` maps an activation to its (min, max). While it is None, activations pass through and their ranges are
    collected in `seen`: the calibration run.
    """

    def __init__(self, weights: dict[str, tuple], ranges: dict[str, tuple[float, float]] | None = None) -> None:
        self.weights = weights
        self.ranges = ranges
        self.seen: dict[str, tuple[float, float]] = {}

    def activation(self, name, x):
        if self.ranges is None:
            low, high = self.seen.get(name, (0.0, 0.0))
            self.seen[name] = (min(low, float(tf.reduce_min(x))), max(high, float(tf.reduce_max(x))))
            return x
        low, high = self.ranges[name]
        return tf.quantization.fake_quant_with_min_max_args(x, low, high)

    def _weights(self, name):
        kernel, bias = self.weights[name]
        low, high = min(0.0, float(kernel.min())), max(0.0, float(kernel.max()))
        return tf.quantization.fake_quant_with_min_max_args(kernel, low, high, narrow_range=True), bias

    def conv(self, name, x, channels, kernel=1, relu6=True):
        weights, bias = self._weights(name)
        x = tf.nn.bias_add(tf.nn.conv2d(x, weights, 1, "SAME"), bias)
        return self.activation(name, tf.nn.relu6(x) if relu6 else x)

    def depthwise(self, name, x, stride=1):
        weights, bias = self._weights(name)
        x = tf.nn.bias_add(tf.nn.depthwise_conv2d(x, weights, [1, stride, stride, 1], "SAME"), bias)
        return self.activation(name, tf.nn.relu6(x))

    def add(self, name, a, b):
        return self.activation(name, tf.nn.relu(a + b))

    def average_pool(self, name, x):
        # Its own range, narrower than its input's: the converter turns that into a QUANTIZE from uint8 to uint8.
        return self.activation(name, tf.nn.avg_pool2d(x, 2, 2, "VALID"))

    def global_mean(self, name, x):
        return self.activation(name, tf.reduce_mean(x, axis=[1, 2]))

    def dense(self, name, x, units, relu=False):
        weights, bias = self._weights(name)
        x = tf.nn.bias_add(tf.matmul(x, weights), bias)
        return self.activation(name, tf.nn.relu(x) if relu else x)

    def softmax(self, name, x):
        return tf.nn.softmax(x)


def build_cnn() -> keras.Model:
    """The float CNN: NHWC images (N, 8, 8, 1) to probabilities (N, 10)."""
    image = keras.Input((8, 8, 1), name="image")
    return keras.Model(image, cnn(image, TrainOps()), name="digits_cnn")


def build_lstm() -> keras.Model:
    """The float LSTM: eight rows of eight pixels (N, 8, 8) to probabilities (N, 10)."""
    rows = keras.Input((8, 8), name="rows")
    x = keras.layers.LSTM(32, name="lstm")(rows)
    x = keras.layers.Dense(10, name="logits")(x)
    return keras.Model(rows, keras.layers.Softmax(name="probabilities")(x), name="digits_lstm")


# ---------------------------------------------------------------------------------------------------------------------
# Training


def train(model: keras.Model, data: Digits, epochs: int) -> None:
    """Adam with cosine decay; an epoch has every training image twice, unchanged and shifted."""
    rng = np.random.default_rng(SEED)
    images = to_real(data.x_train)
    labels = np.tile(data.y_train.astype(np.int32), 2)
    steps = epochs * -(-len(labels) // BATCH)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    for _ in range(epochs):
        batch = np.concatenate([images, shifted(images, rng)])
        order = rng.permutation(len(batch))
        x = batch[order].reshape(-1, *model.input_shape[1:])
        model.fit(x, labels[order], batch_size=BATCH, shuffle=False, verbose=0)


# ---------------------------------------------------------------------------------------------------------------------
# Conversion


def calibration(data: Digits, shape: tuple[int, ...]) -> Callable[[], Iterator[list[np.ndarray]]]:
    """The converter's representative dataset: training images one at a time."""

    def images() -> Iterator[list[np.ndarray]]:
        for image in to_real(data.x_train[:CALIBRATION_IMAGES]):
            yield [image.reshape(shape)]

    return images


def convert(model: keras.Model, configure: Callable[[tf.lite.TFLiteConverter], None]) -> bytes:
    """`model` at batch size 1 as a TFLite flatbuffer; `configure` sets the numeric format on the converter."""
    shape = (1, *model.input_shape[1:])
    spec = tf.TensorSpec(shape, tf.float32, name=model.input_names[0])
    signature = tf.function(lambda x: {"probabilities": model(x, training=False)}).get_concrete_function(spec)
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(model, folder, signatures=signature)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        configure(converter)
        return converter.convert()


def float16(converter: tf.lite.TFLiteConverter) -> None:
    """Weights stored as float16, computation in float32."""
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.target_spec.supported_types = [tf.float16]


def dynamic(converter: tf.lite.TFLiteConverter) -> None:
    """Dynamic range: int8 weights, activations quantized at run time."""
    converter.optimizations = [tf.lite.Optimize.DEFAULT]


def integer(data: Digits, shape: tuple[int, ...], activations: str) -> Callable[[tf.lite.TFLiteConverter], None]:
    """Full integer: per-channel int8 weights, int8 or int16 activations, including input and output."""

    def configure(converter: tf.lite.TFLiteConverter) -> None:
        ops = tf.lite.OpsSet
        wide = ops.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = calibration(data, shape)
        converter.target_spec.supported_ops = [wide if activations == "int16" else ops.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.dtypes.as_dtype(activations)

    return configure


def convert_uint8(model: keras.Model, data: Digits) -> bytes:
    """The CNN in the older asymmetric format: uint8 activations and uint8 weights, one scale per tensor."""
    weights = folded_weights(model)
    calibrate = FakeQuantOps(weights)
    cnn(tf.constant(to_real(data.x_train)[..., None]), calibrate)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        image = tf.compat.v1.placeholder(tf.float32, (1, 8, 8, 1), name="image")
        source = tf.quantization.fake_quant_with_min_max_args(image, 0, 1)
        probabilities = cnn(source, FakeQuantOps(weights, calibrate.seen))
        converter = tf.compat.v1.lite.TFLiteConverter.from_session(session, [image], [probabilities])
        converter.inference_type = tf.uint8
        converter.quantized_input_stats = {"image": (0.0, 255.0)}  # (zero point, 1 / scale)
        return converter.convert()


# ---------------------------------------------------------------------------------------------------------------------
# Checking and writing


def accuracy(flatbuffer: bytes, data: Digits) -> float:
    """Share of the held-out images that LiteRT classifies correctly, the input quantized by the model's parameters."""
    interpreter = Interpreter(model_content=flatbuffer)
    interpreter.allocate_tensors()
    (source,) = interpreter.get_input_details()
    (result,) = interpreter.get_output_details()
    right = 0
    for image, label in zip(to_real(data.x_test), data.y_test, strict=True):
        if np.issubdtype(source["dtype"], np.integer):
            scale, zero_point = source["quantization"]
            limits = np.iinfo(source["dtype"])
            image = np.clip(np.rint(image / scale) + zero_point, limits.min, limits.max)
        interpreter.set_tensor(source["index"], image.reshape(source["shape"]).astype(source["dtype"]))
        interpreter.reset_all_variables()  # an LSTM's state would otherwise carry over from the previous image
        interpreter.invoke()
        right += int(np.argmax(interpreter.get_tensor(result["index"])) == label)
    return right / len(data.y_test)


def convert_all(data: Digits) -> Iterator[tuple[str, bytes]]:
    """Train both networks and yield (file name, flatbuffer) in every format."""
    network = build_cnn()
    train(network, data, epochs=60)
    image = (1, 8, 8, 1)
    yield "digits_cnn_float32.tflite", convert(network, lambda converter: None)
    yield "digits_cnn_float16.tflite", convert(network, float16)
    yield "digits_cnn_dynamic.tflite", convert(network, dynamic)
    yield "digits_cnn_int8.tflite", convert(network, integer(data, image, "int8"))
    yield "digits_cnn_int16x8.tflite", convert(network, integer(data, image, "int16"))
    yield "digits_cnn_uint8.tflite", convert_uint8(network, data)

    recurrent = build_lstm()
    train(recurrent, data, epochs=120)
    rows = (1, 8, 8)
    # int8 only: the converter does not know how to quantize an LSTM to 16x8.
    yield "digits_lstm_int8.tflite", convert(recurrent, integer(data, rows, "int8"))


def main() -> None:
    """Write the models, the held-out images and the labels to the folder given with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("qnn_ext/data"), help="folder to write to (%(default)s)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(SEED)
    tf.config.experimental.enable_op_determinism()

    data = load_split()
    np.savez_compressed(out / "digits_test.npz", x=data.x_test, y=data.y_test)
    (out / "digits_labels.txt").write_text("".join(f"{digit}\n" for digit in range(10)))
    for name, flatbuffer in convert_all(data):
        (out / name).write_bytes(flatbuffer)
        print(f"{name:28} {len(flatbuffer):7,d} bytes   held-out accuracy {accuracy(flatbuffer, data):.2%}", flush=True)


if __name__ == "__main__":
    main()
