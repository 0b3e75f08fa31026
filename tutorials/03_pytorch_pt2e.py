"""Tutorial 3: a PyTorch network, quantized by PT2E, to an integer executable.

    pip install 'qnn-ext[torch]'
    python tutorials/03_pytorch_pt2e.py

PT2E is how PyTorch quantizes today: torch.export traces the network, a quantizer decides what becomes integers,
observers watch calibration data, and the result is exported again. `from_pytorch` takes that program, as an object or
as a .pt2 file. The same function takes TorchScript from eager mode and FX models.
"""

import logging
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import qnn_ext
from qnn_ext.frontends.pytorch import from_pytorch

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
torch.manual_seed(0)
torch.set_num_threads(1)

from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86  # noqa: E402

# 1. A small network: two convolutions with batch normalization, a residual sum, pooling, a dense layer.


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        self.relu, self.pool, self.dense = nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        x = self.relu(x + self.block(x))
        return self.dense(self.pool(x).flatten(1))


network = Network().eval()
calibration = [torch.randn(4, 3, 32, 32) for _ in range(8)]
example = (torch.randn(4, 3, 32, 32),)

# 2. Quantize: trace, insert observers, run a few batches, convert. Batch normalization is folded into the
#    convolutions, weights become int8 with one scale per channel, activations uint8.

quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
prepared = prepare_pt2e(torch.export.export(network, example).module(), quantizer)
with torch.no_grad():
    for batch in calibration:
        prepared(batch)
program = torch.export.export(convert_pt2e(prepared), example)

# 3. Import. Between each dequantize and the next quantize, PyTorch's program computes in float; the module computes the
#    same in integers. Anything that stays in float is noted.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "network.pt2"
    torch.export.save(program, path)
    module = from_pytorch(path)  # from_pytorch(program) is the same without the file
print("input: ", module.inputs[0])
print("output:", module.outputs[0])
print("in float:", [f"{note.operator}: {note.reason}" for note in module.notes] or "nothing")
assert module.script().count("R.qnn.conv2d") == 2 and module.script().count("R.qnn.dense") == 1

# 4. Build and run.

engine = qnn_ext.build(module, target="native", num_threads=1)
image = example[0].numpy()
logits = engine(image)

# 5. Compare with PyTorch itself, and with the interpreter, which computes operator by operator in NumPy.

with torch.no_grad():
    expected = program.module()(*example).numpy()
    unquantized = network(*example).numpy()
print(f"largest difference from PyTorch's quantized program: {np.abs(logits - expected).max():.2e}")
print(f"largest difference from the float network:           {np.abs(logits - unquantized).max():.2e}")
np.testing.assert_allclose(logits, qnn_ext.Interpreter(module)(image), rtol=0, atol=1e-6)
assert np.abs(logits - expected).max() <= 0.02 * np.abs(expected).max()

# 6. Speed.

print(engine.time(number=20, repeat=3))
