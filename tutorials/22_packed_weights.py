"""Tutorial 22: the weights of a language model in 8, 4 and 2 bits, and what that costs.

    LLM=FOLDER python tutorials/22_packed_weights.py

The model is that of tutorial 20: one of llama2.c, 260,000 parameters trained on TinyStories, if `LLM` is a folder with
stories260K.bin, else a small one with random weights. Its float module is quantized in several ways, and perplexity
says how well each still predicts stories that the float model wrote. It needs the extra `torch`.
"""

import os
import tempfile
import warnings
from pathlib import Path

import llama
import numpy as np
import torch

import qnn_ext
from qnn_ext.generation import LanguageModel, Sampling, generate, perplexity
from qnn_ext.quantize import QConfig, control_accuracy, quantize

warnings.filterwarnings("ignore", category=FutureWarning)
CHECKPOINT = Path(os.environ.get("LLM", ".")) / "stories260K.bin"

# 1. Import the float model, for one token at a time.

if CHECKPOINT.is_file():
    model = llama.read_llama2c(CHECKPOINT)
else:
    print(f"there is no {CHECKPOINT}: random weights show the same steps, but the methods gain little from them")
    sizes = llama.Config(width=32, hidden=64, layers=1, heads=4, kv_heads=2, vocabulary=64, length=48)
    model = llama.random_llama(sizes)
program = torch.export.export(model, (torch.ones(1, 1, dtype=torch.int64), torch.arange(1)))
module = qnn_ext.from_pytorch(program)

# 2. Let it write texts. Half of them measure, and the others show the methods that want data what the layers read. Data
# of a model with states are a sequence: here one token after another, and position 0 begins the next text.

BEGIN, LENGTH = 1, min(100, model.config.length)
float_model = LanguageModel(qnn_ext.build(module))


def written(seed: int) -> list[int]:
    """A text of the float model."""
    float_model.reset()
    return [BEGIN, *generate(float_model, [BEGIN], LENGTH - 1, Sampling(temperature=1.0, seed=seed), [BEGIN])]


measured, seen = [written(seed) for seed in range(3)], [written(seed) for seed in range(3, 6)]
data = [(np.array([[token]]), np.array([place])) for text in seen for place, token in enumerate(text)]

# 3. Quantize in several ways. Groups of 32 values along a row share a scale. "mse" and "hqq" choose it better than by
# the largest value alone; AWQ gives channels with large activations finer weights; GPTQ chooses integers whose errors
# cancel on the data.

FOUR = {"weight_only": True, "nbit_weight": 4, "group_size": 32, "embeddings": True}
ways = {
    "8 bits": {**FOUR, "nbit_weight": 8},
    "8 bits, activations too": {**FOUR, "nbit_weight": 8, "weight_only": False, "dynamic": True},
    "4 bits": FOUR,
    "4 bits, mse": {**FOUR, "weight_scale": "mse"},
    "4 bits, gptq": {**FOUR, "weight_rounding": "gptq"},
    "4 bits, mse, awq, gptq": {**FOUR, "weight_scale": "mse", "smooth": "awq", "weight_rounding": "gptq"},
    "4 bits, head and embedding 8": {
        **FOUR,
        "weight_rounding": "gptq",
        "overrides": {"embedding*": {"nbit_weight": 8}, "head*": {"nbit_weight": 8}},
    },
    "2 bits": {**FOUR, "nbit_weight": 2, "weight_symmetric": False},
}
print(f"{'float32':30} perplexity {perplexity(float_model, measured):8.3f}")
with tempfile.TemporaryDirectory() as folder:
    for way, settings in ways.items():
        engine = qnn_ext.build(quantize(module, dataset=data, config=QConfig(**settings)))
        engine.save(Path(folder) / "quantized.qnn")
        size = (Path(folder) / "quantized.qnn").stat().st_size
        print(f"{way:30} perplexity {perplexity(LanguageModel(engine), measured):8.3f}, file {size / 1e3:6.0f} kB")

# 4. Or say how much worse the perplexity may be. Settings that cost no bits are tried first, unless the configuration
# has them; then the layers that cost the model's logits most get 8 bits instead of 4, as few as will do. A folder
# `work=` keeps what was measured. Attention is left in float here, which saves the tutorial's time.


def fluency(engine: qnn_ext.Engine) -> float:
    """Higher for a better model."""
    return -perplexity(LanguageModel(engine), measured)


METHODS = {"weight_scale": "mse", "smooth": "awq", "weight_rounding": "gptq"}
config = QConfig(**FOUR, **METHODS, overrides={"*attention*": {"precision": "float32"}})
found = control_accuracy(module, dataset=data, config=config, metric=fluency, max_drop=0.1)
for trial in found.report.trials:
    print(trial.summary)
dearest = sorted(found.report.noise.items(), key=lambda item: -item[1][4])[:3]
print("dearest:", ", ".join(f"{layer} {noise[4]:.1g}" for layer, noise in dearest))
print("in 8 bits:", ", ".join(found.report.chosen.in_8_bits) or "none")

# 5. The key-value cache in fewer bits, too: in float16, or in int8 with a scale for each row.

four = quantize(module, dataset=data, config=QConfig(**FOUR))
for dtype in ("model", "float16", "int8"):
    engine = qnn_ext.build(four, cache_dtype=dtype)
    size = sum(state.initial.nbytes for state in engine.states)
    print(f"cache {dtype:8} perplexity {perplexity(LanguageModel(engine), measured):8.3f}, cache {size / 1e3:6.1f} kB")

# 6. The command does the same:
#
#     qnn-ext quantize model.pt2 --weight-only --bits 4 --group-size 32 --embeddings --set weight_rounding=gptq \
#         --data tokens.npz -o quantized.qnn
#     qnn-ext quantize model.pt2 --weight-only --bits 4 --group-size 32 --data tokens.npz --perplexity texts.txt \
#         --max-drop 0.1 --work trials/ -o quantized.qnn
