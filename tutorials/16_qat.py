"""Tutorial 16: a PyTorch network trained for few bits: quantization-aware training.

    pip install 'qnn-ext[torch,onnx]'
    python tutorials/16_qat.py

Eight bits rarely need training: tutorials 7 and 13 quantize a trained network with a little data. Four bits and fewer
do. The network learns with every weight and activation rounded as the integers will round them. Here, in a minute and
without a GPU: 400 digits that come with the package, labelled by its float model, to train on; 450 others to test.
"""

import logging
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import qnn_ext
from qnn_ext import qat

warnings.filterwarnings("ignore", category=DeprecationWarning)
logging.disable(logging.WARNING)
torch.manual_seed(0)
torch.set_num_threads(1)

DATA = Path(qnn_ext.__file__).parent / "data"
with np.load(DATA / "digits_calibration.npz") as stored:
    images = stored["image"]  # (400, 1, 8, 8), float32 from 0 to 1
with np.load(DATA / "digits_test.npz") as stored:
    held_out, labels = stored["x"][:, None].astype(np.float32) / 16, stored["y"]
teacher = qnn_ext.build(qnn_ext.from_onnx(DATA / "digits_cnn_float32.onnx"), num_threads=1)
x, y = torch.from_numpy(images), torch.from_numpy(teacher(images).argmax(1))


# 1. Any module that torch.fx can trace. Nothing in it knows of quantization.


class Network(nn.Module):
    """Two convolutions, a depthwise block with a shortcut, a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.down = nn.Sequential(nn.Conv2d(12, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        self.depthwise = nn.Sequential(nn.Conv2d(24, 24, 3, 1, 1, groups=24, bias=False), nn.BatchNorm2d(24))
        self.dense = nn.Linear(24 * 4, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        z = self.down(self.stem(image))
        z = F.max_pool2d(F.relu(z + self.depthwise(z)), 2)
        return self.dense(z.flatten(1))


def train(network: nn.Module, epochs: int, rate: float) -> None:
    """Adam with cosine decay, on images shifted by up to one pixel."""
    optimizer = torch.optim.Adam(network.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * 10)
    for _ in range(epochs):
        for chosen in torch.randperm(400).reshape(10, 40):
            right, down = (int(shift) for shift in torch.randint(0, 3, (2,)))
            shifted = F.pad(x[chosen], (1, 1, 1, 1))[:, :, down : down + 8, right : right + 8]
            loss = F.cross_entropy(network(shifted), y[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def accuracy(scores) -> float:
    """Share of the held-out digits classified correctly, in percent."""
    return 100 * float(np.mean(np.asarray(scores.detach() if torch.is_tensor(scores) else scores).argmax(1) == labels))


network = Network()
train(network, epochs=40, rate=1e-2)
example = torch.from_numpy(held_out)
print(f"float: {accuracy(network.eval()(example)):.2f} %")

# 2. Five configurations. Google's scale is max / (2^(b-1) - 1), or (max - min) / (2^b - 1) with a zero point;
#    Cambricon's is a power of two. A scale for each layer, or for each output channel of a weight.

BITS = {"weight_bits": 3, "activation_bits": 3}
CONFIGS = {
    "google symmetric, per layer": {"activation_scheme": "symmetric", "per_channel": False},
    "google symmetric, per channel": {"activation_scheme": "symmetric"},
    "google affine, per layer": {"weight_scheme": "affine", "per_channel": False},
    "google affine activations, per channel": {},
    "cambricon, per layer": {"formula": "cambricon", "activation_scheme": "symmetric", "per_channel": False},
}

# 3. Without training, for comparison: `prepare` copies the network, and a pass over the data finds the ranges.
#    `freeze(ranges=False)` keeps batch normalizations from moving meanwhile.


def post_training(config: qat.QatConfig):
    """The integers of a network whose ranges are observed, and nothing else."""
    prepared = qat.freeze(qat.prepare(network, example, config), ranges=False).train()
    with torch.no_grad():
        prepared(x)
    return qat.convert(prepared)


# 4. With training. `freeze` ends the observing part: for the last epochs scales and statistics stay as they are.


def trained(config: qat.QatConfig):
    """The integers of a network that has trained with them."""
    prepared = qat.prepare(network, example, config).train()
    train(prepared, epochs=12, rate=5e-3)
    train(qat.freeze(prepared), epochs=3, rate=5e-4)
    return qat.convert(prepared), prepared.eval()


print(f"{'3 bits':40} {'post-training':>14} {'simulated':>10} {'integers':>9}")
for name, fields in CONFIGS.items():
    config = qat.QatConfig(**BITS, **fields, averaging_constant=0.05)
    torch.manual_seed(1)
    before = accuracy(post_training(config).module()(example))
    program, prepared = trained(config)
    engine = qnn_ext.build(qnn_ext.from_pytorch(program), num_threads=1)
    after = accuracy(engine(held_out))
    print(f"{name:40} {before:12.2f} % {accuracy(prepared(example)):8.2f} % {after:7.2f} %")
    assert after > before

# 5. The integers are those that training has simulated, in every runtime: PyTorch, this package, and on the ONNX model
#    ONNX Runtime and OpenVINO; on a CPU without VNNI these two are exact only where weights have 7 bits or fewer, and
#    OpenVINO only with unsigned activations. The images are made 5 % darker here: a pixel of 0.5 is 127.5 steps of the
#    input's scale, 1/255, and so near to a tie float32 rounds as its operations happen to be ordered. Cambricon's
#    scales have no such cases. `layers=True` compares each layer.

program, _ = trained(qat.QatConfig(**BITS, averaging_constant=0.05))
for one in qat.agreement(program, 0.95 * example):
    print(f"{one.runtime:28} {one.different} of {one.total} values differ")
    assert one.different <= one.total // 100 or one.runtime == "OpenVINO"

# 6. Keep: a program of PyTorch, an ONNX model, a compiled file. Fewer than 8 bits are stored in 8.

with tempfile.TemporaryDirectory() as folder:
    torch.export.save(program, Path(folder) / "digits.pt2")
    qat.to_onnx(program, Path(folder) / "digits.onnx")
    engine = qnn_ext.build(qnn_ext.from_onnx(Path(folder) / "digits.onnx"), num_threads=1)
    engine.save(Path(folder) / "digits.qnn")
    for path in sorted(Path(folder).iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")
