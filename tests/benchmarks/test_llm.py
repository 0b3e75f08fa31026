"""The benchmark of language models: all runtimes compute the same logits, and the tables are printed."""

import importlib.util

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from benchmarks.llm.__main__ import main
from benchmarks.llm.files import write_files
from benchmarks.llm.networks import NETWORKS, blocks
from benchmarks.llm.runners import RUNTIMES

TINY = NETWORKS["tiny"]
TOKENS = [5, 7, 9, 200, 33]
NAMES = "qnn_ext", "ONNX Runtime"


@pytest.fixture(scope="module", params=[(4, (1, 4)), (8, (1,))], ids=["4 bits", "8 bits"])
def files(request, tmp_path_factory):
    bits, lengths = request.param
    known = [runtime for runtime in RUNTIMES if bits in runtime.bits]
    kinds = {runtime.file for runtime in known if all(map(importlib.util.find_spec, runtime.modules))}
    made = write_files(TINY, bits, lengths, kinds, 1, tmp_path_factory.mktemp("llm"), verbose=True)
    return {kind: file.path for kind, file in made.items()}


@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.key)
def test_logits(runtime, files, monkeypatch):
    for name in runtime.modules:
        pytest.importorskip(name)
    if runtime.file not in files:
        pytest.skip("not with weights of so many bits")
    if "inductor" in runtime.key:
        monkeypatch.setattr("benchmarks.llm.torch_network.TRIES_KERNELS", False)
    reference = next(one for one in RUNTIMES if one.key == "onnxruntime").open(files["onnx"], TINY, 1)
    expected = reference.run(TOKENS)
    model = runtime.open(files[runtime.file], TINY, 1)
    # activations are rounded to 8 bits in places of their own, or not at all; 8da4w has a grid of its own for 4 bits
    tolerance = 1e-5 if runtime.key in ("onnxruntime", "qnn_ext") else 0.25 if "8da4w" in runtime.key else 0.05
    results = [[model.run([token]) for token in TOKENS][-1]]
    model.rewind(3)
    model.run(TOKENS[3:4])
    results.append(model.run(TOKENS[4:]))
    if "inductor" not in runtime.key:  # which compiles for each number of tokens
        model.rewind(0)
        results.append(model.run(TOKENS))
    for found in results:
        assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


def test_networks_have_the_sizes_of_their_names():
    assert 90e6 < NETWORKS["100m"].parameters < 110e6 and 450e6 < NETWORKS["500m"].parameters < 550e6
    for network in NETWORKS.values():
        assert network.heads * network.size == network.width and network.heads % network.groups == 0


def test_weights_differ_between_layers_and_are_what_products_want():
    first, second = (blocks(TINY, f"{layer}.up", 4) for layer in range(2))
    assert (first.values != second.values).any()
    real = (first.values - 8.0) * np.repeat(first.scale, 32, axis=1)
    x = np.random.default_rng(0).normal(size=TINY.width)
    assert 0.5 < np.std(real @ x) < 2


def test_tables(capsys):
    arguments = ["--networks", "tiny", "--prompts", "8", "--threads", "1", "--rounds", "1"]
    main([*arguments, "--runtimes", "qnn_ext", "onnxruntime"])
    printed = capsys.readouterr().out
    speeds, costs = ([line for line in printed.splitlines() if line.startswith(f"| {name} |")] for name in NAMES)
    assert len(speeds) == len(costs) == 2
    for line in (speeds[0], costs[0]):
        assert all(float(cell) > 0 for cell in line.split("|")[2:-1])
    assert all(float(line.split("|")[-2]) < 1e-5 for line in (speeds[1], costs[1]))  # logits from ours
    assert "ours / best other" in printed and "Share of the read bandwidth" in printed
