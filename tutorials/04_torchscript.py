"""Tutorial 4: a PyTorch model quantized in eager mode, from TorchScript to an integer executable.

    pip install 'qnn-ext[torch]'
    python tutorials/04_torchscript.py

The model is made here: a small residual CNN, calibrated on random images. FX graph mode works the same way from
`torch.jit.trace` on. (Models from `torch.export`, PT2E, need no tracing: give from_pytorch the `.pt2` file.)
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import DeQuantStub, QuantStub, convert, fuse_modules, get_default_qconfig, prepare

import qnn_ext

warnings.filterwarnings("ignore", category=UserWarning)
warnings.filterwarnings("ignore", category=DeprecationWarning)
torch.manual_seed(0)

# 1. A float model, written for eager mode: stubs say where quantization begins and ends, FloatFunctional adds.


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quantize, self.dequantize = QuantStub(), DeQuantStub()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        self.residual = FloatFunctional()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(self.quantize(image))
        x = self.pool(self.residual.add_relu(self.body(x), x))
        return self.dequantize(self.classifier(torch.flatten(x, 1)))


# 2. Quantize it: fuse, observe some images, convert. The engine is the backend whose arithmetic the model will follow.

ENGINE = "x86"
torch.backends.quantized.engine = ENGINE
images = [torch.randn(1, 3, 32, 32) for _ in range(16)]
model = fuse_modules(Network().eval(), [["stem.0", "stem.1", "stem.2"], ["body.0", "body.1"]])
model.qconfig = get_default_qconfig(ENGINE)
prepared = prepare(model)
with torch.no_grad():
    for image in images:
        prepared(image)
quantized = convert(prepared)

# 3. Trace and save. TorchScript files carry neither the inputs' shapes nor the engine: the import asks for both.

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "network.pt"
    torch.jit.trace(quantized, images[0]).save(path)
    module = qnn_ext.from_pytorch(path, example_inputs=(images[0],), engine=ENGINE)

print("input: ", module.inputs[0])
print("output:", module.outputs[0])
print("in float:", [f"{note.operator}: {note.reason}" for note in module.notes] or "nothing between the stubs")

# 4. Build, run, compare: every float equals PyTorch's.

engine = qnn_ext.build(module, target="native", num_threads=1)
equal = total = 0
for image in images:
    with torch.no_grad():
        expected = quantized(image).numpy()
    result = engine(image.numpy())
    equal, total = equal + int((result == expected).sum()), total + result.size
print(f"{equal} of {total} logits equal PyTorch's exactly")
assert equal == total

# 5. And the interpreter, operator by operator in NumPy, gives the same.

np.testing.assert_array_equal(qnn_ext.Interpreter(module)(images[0].numpy()), engine(images[0].numpy()))
print(engine.time())
