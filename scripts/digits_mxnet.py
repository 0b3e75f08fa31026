"""Train the bundled digit CNN in MXNet and quantize it with MXNet's oneDNN quantizer.

    pip install mxnet==1.9.1 numpy==1.23.5 scipy==1.10.1 scikit-learn==1.3.2     # Python 3.8: MXNet's last release
    OMP_NUM_THREADS=1 python -m scripts.digits_mxnet --out qnn_ext/data

Writes digits_mxnet-symbol.json and digits_mxnet-0000.params: uint8 and int8 activations ("auto"), ranges from naive
calibration. Input: (N, 1, 8, 8), pixel / 16; output: ten logits. digits_mxnet_io.npz holds "x", held-out images one by
one (16, 1, 1, 8, 8), "y", MXNet's logits for them (16, 1, 10), and "y_fp32", the float network's.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ["MXNET_SUBGRAPH_BACKEND"] = "NONE"  # run every graph as written

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.contrib.quantization import quantize_model_mkldnn
from mxnet.gluon import nn

from .digits_data import SEED, Digits, load_split, to_real

NAME = "digits_mxnet"
BATCH = 32
EPOCHS = 60
CALIBRATION_IMAGES = 400
GOLDEN_IMAGES = 16


class ConvNorm(nn.HybridSequential):
    """Convolution with "same" padding, batch normalization, and ReLU unless `relu` is off."""

    def __init__(self, channels, kernel=1, stride=1, groups=1, relu=True, **options):
        super().__init__(**options)
        with self.name_scope():
            self.add(nn.Conv2D(channels, kernel, stride, kernel // 2, groups=groups, use_bias=False))
            self.add(nn.BatchNorm())
            if relu:
                self.add(nn.Activation("relu"))


class DigitsCnn(nn.HybridBlock):
    """Stem, depthwise-separable block, inverted residual, two poolings, two dense layers: (N, 1, 8, 8) to (N, 10).

    The shortcut has no activation, as in MobileNetV2, so the residual sum's operand is int8 and its result uint8: the
    case in which the two sum modes of from_mxnet differ.
    """

    def __init__(self, **options):
        super().__init__(**options)
        with self.name_scope():
            self.stem = ConvNorm(16, kernel=3, prefix="stem_")
            self.separable_depthwise = ConvNorm(16, kernel=3, stride=2, groups=16, prefix="separable_depthwise_")
            self.separable_pointwise = ConvNorm(32, relu=False, prefix="separable_pointwise_")
            self.residual_expand = ConvNorm(64, prefix="residual_expand_")
            self.residual_depthwise = ConvNorm(64, kernel=3, groups=64, prefix="residual_depthwise_")
            self.residual_project = ConvNorm(32, relu=False, prefix="residual_project_")
            self.pool = nn.AvgPool2D(2, prefix="pool_")
            self.head = ConvNorm(48, prefix="head_")
            self.mean = nn.GlobalAvgPool2D(prefix="mean_")
            self.hidden = nn.Dense(32, activation="relu", prefix="hidden_")
            self.logits = nn.Dense(10, prefix="logits_")

    def hybrid_forward(self, F, image):
        shortcut = self.separable_pointwise(self.separable_depthwise(self.stem(image)))
        x = self.residual_project(self.residual_depthwise(self.residual_expand(shortcut)))
        x = self.pool(F.Activation(x + shortcut, act_type="relu"))
        return self.logits(self.hidden(self.mean(self.head(x))))


def as_input(images):
    """Raw images (N, 8, 8) as network inputs."""
    return mx.nd.array(to_real(images)[:, None])


def shifted(images, random):
    """Every image shifted by up to one pixel along each axis, filled with background."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    offsets = random.randint(0, 3, size=(len(images), 2))
    return np.stack([padded[i, r : r + 8, c : c + 8] for i, (r, c) in enumerate(offsets)])


def train(network, data: Digits) -> None:
    """Adam with cosine decay; an epoch has every training image twice, unchanged and shifted."""
    random = np.random.RandomState(SEED)
    labels = np.tile(data.y_train.astype(np.float32), 2)
    steps = EPOCHS * -(-len(labels) // BATCH)
    schedule = mx.lr_scheduler.CosineScheduler(steps, base_lr=3e-3, final_lr=0)
    trainer = gluon.Trainer(network.collect_params(), "adam", {"learning_rate": 3e-3, "lr_scheduler": schedule})
    loss = gluon.loss.SoftmaxCrossEntropyLoss()
    for _ in range(EPOCHS):
        images = np.concatenate([data.x_train, shifted(data.x_train, random)])
        order = random.permutation(len(images))
        for begin in range(0, len(images), BATCH):
            chosen = order[begin : begin + BATCH]
            with autograd.record():
                value = loss(network(as_input(images[chosen])), mx.nd.array(labels[chosen]))
            value.backward()
            trainer.step(len(chosen))
    mx.nd.waitall()


def quantize(symbol, args, aux, data: Digits):
    """(symbol, args, aux) of the quantized network."""
    images = mx.io.NDArrayIter(as_input(data.x_train[:CALIBRATION_IMAGES]), batch_size=20)
    return quantize_model_mkldnn(
        sym=symbol,
        arg_params=args,
        aux_params=aux,
        data_names=("data",),
        label_names=None,
        ctx=mx.cpu(),
        calib_mode="naive",
        calib_data=images,
        num_calib_examples=CALIBRATION_IMAGES,
        quantized_dtype="auto",
        quantize_mode="smart",
    )


def predict(model, images):
    """The outputs for the images one by one, (N, 1, 10)."""
    symbol, args, aux = model
    module = mx.mod.Module(symbol, label_names=None, context=mx.cpu())
    module.bind(for_training=False, data_shapes=[("data", (1, 1, 8, 8))])
    module.set_params(args, aux)
    results = []
    for image in images:
        module.forward(mx.io.DataBatch([as_input(image[None])], None), is_train=False)
        results.append(module.get_outputs()[0].asnumpy())
    return np.stack(results)


def main() -> None:
    """Write the model and MXNet's answers to the folder given with --out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("qnn_ext/data"), help="folder to write to (%(default)s)")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    mx.random.seed(SEED)
    np.random.seed(SEED)  # the source of MXNet's initializers

    data = load_split()
    network = DigitsCnn(prefix="")
    network.initialize(mx.init.Xavier())
    network.hybridize()
    train(network, data)
    symbol = network(mx.sym.Variable("data"))
    values = {name: value.data() for name, value in network.collect_params().items()}
    args = {name: values[name] for name in symbol.list_arguments() if name != "data"}
    aux = {name: values[name] for name in symbol.list_auxiliary_states()}
    model = quantize(symbol, args, aux, data)
    mx.model.save_checkpoint(str(out / NAME), 0, *model)

    golden = data.x_test[:GOLDEN_IMAGES]
    np.savez_compressed(
        out / (NAME + "_io.npz"),
        x=to_real(golden)[:, None, None],
        y=predict(model, golden),
        y_fp32=predict((symbol, args, aux), golden),
    )
    for kind, which in (("float", (symbol, args, aux)), ("quantized", model)):
        right = predict(which, data.x_test)[:, 0].argmax(1) == data.y_test
        print(f"{kind:10} held-out accuracy {right.mean():.2%}")


if __name__ == "__main__":
    main()
