"""Tutorial 20: a language model writes a story.

    LLM=FOLDER python tutorials/20_language_model.py

A model of llama2.c, 260,000 parameters trained on TinyStories, becomes a PyTorch module with a static key-value cache
(llama.py, beside this file), a program of torch.export, and a .qnn file that needs neither PyTorch nor a compiler. It
takes the files of `LLM`, a folder with stories260K.bin and tok512.bin; without them a small model with random weights
shows the same steps, and writes nonsense. It needs the extra `torch`, for text also `llm`.
"""

import os
import tempfile
import warnings
from pathlib import Path

import llama
import torch

import qnn_ext
from qnn_ext.generation import Generated, LanguageModel, Sampling, generate, load_tokenizer

warnings.filterwarnings("ignore", category=FutureWarning)
FOLDER = Path(os.environ.get("LLM", "."))
TRAINED = (FOLDER / "stories260K.bin").is_file()

# 1. Read the checkpoint. The module's cache is a buffer, in which `index_copy_` replaces the rows of new tokens.

if TRAINED:
    model = llama.read_llama2c(FOLDER / "stories260K.bin")
else:
    print(f"{FOLDER} has no stories260K.bin: with random weights the model writes nonsense")
    sizes = llama.Config(width=16, hidden=24, layers=1, heads=4, kv_heads=2, vocabulary=64, length=32)
    model = llama.random_llama(sizes)
config = model.config
print(config)

# 2. Export it: a token's number in, and its position in the cache. Once for one token at a time, as text is generated,
# and once for eight, as the prompt is read. Buffers that a program changes become states of the engine, which updates
# them in their own memory: no step copies the cache, and attention reads only the positions that are filled.

modules = []
for count in (1, 8):
    program = torch.export.export(model, (torch.ones(1, count, dtype=torch.int64), torch.arange(count)))
    modules.append(qnn_ext.from_pytorch(program))
print(modules[0])
print(f"{len(modules[0].states)} states of {modules[0].states[0].initial.shape}")

# 3. Compile both to one file, and load that. Weights are in it once, and in memory; both go on from the same states.

with tempfile.TemporaryDirectory() as folder:
    qnn_ext.build(modules).save(Path(folder) / "stories.qnn")
    engine = qnn_ext.load(Path(folder) / "stories.qnn")
    tokenizer = None
    if TRAINED:
        llama.write_tokenizer(FOLDER / "tok512.bin", Path(folder) / "tokenizer.model")
        tokenizer = load_tokenizer(Path(folder) / "tokenizer.model")
language_model = LanguageModel(engine)

# 4. Generate greedily: the likeliest token each time. It is the text that PyTorch writes.

prompt = tokenizer.encode("Once upon a time") if tokenizer else [1, 5, 9, 2]
most = min(200, config.length - len(prompt))
progress = Generated()
tokens = list(generate(language_model, prompt, most, progress=progress))
print(tokenizer.decode(prompt + tokens) if tokenizer else tokens)
print(f"{progress.decode_rate:.0f} tokens a second, the first after {progress.first * 1e3:.1f} ms")

by_pytorch = list(prompt)
with torch.no_grad():
    for position in range(len(prompt) + most - 1):
        logits = model(torch.tensor([[by_pytorch[position]]]), torch.tensor([position]))
        if position >= len(prompt) - 1:
            by_pytorch.append(int(logits[0, -1].argmax()))
print("equal to PyTorch's:", tokens == by_pytorch[len(prompt) :])
assert tokens == by_pytorch[len(prompt) :]

# 5. Draw tokens instead. Several texts go on from one prompt: `state` keeps what the cache holds behind it, so that the
# prompt is computed once.

language_model.reset()
language_model.logits(prompt[:-1])
behind_the_prompt = language_model.state()
for seed in range(2):
    language_model.restore(behind_the_prompt)
    sampling = Sampling(temperature=0.9, top_p=0.9, seed=seed)
    drawn = list(generate(language_model, prompt[-1:], 20, sampling))
    print(f"{seed}:", tokenizer.decode(prompt + drawn) if tokenizer else drawn)

# 6. The command does the same, and streams the text:
#
#     qnn-ext generate stories.qnn --tokenizer tokenizer.model --prompt "Once upon a time" --temperature 0.9
