"""The table of perplexities, on a small model with random weights: each way has a row, and is what it says."""

import numpy as np
import pytest

from benchmarks import perplexity

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A file of llama2.c with random weights: width 16, hidden 24, 1 layer, 2 heads, vocabulary 32, length 24."""
    header = np.array([16, 24, 1, 2, 2, 32, 24], np.int32)
    counts = [32 * 16, 16, 16 * 16, 16 * 16, 16 * 16, 16 * 16, 16, 24 * 16, 16 * 24, 24 * 16, 16]
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("llama") / "random.bin"
    path.write_bytes(header.tobytes() + (rng.standard_normal(sum(counts)) * 0.3).astype(np.float32).tobytes())
    return path


def test_rows(checkpoint):
    names = ["int8 weight-only, per row", "8da4w: int4 dynamic, groups of 32"]
    ways = {name: perplexity.WAYS[name] for name in names}
    rows = list(perplexity.measure(perplexity.module_of(checkpoint), ways, 2, 12))
    assert [row.way for row in rows] == ["float32", *names, "float32, cache float16", "float32, cache int8"]
    for row in rows[3:]:
        assert 0 < abs(row.perplexity - rows[0].perplexity) < 0.01 * rows[0].perplexity
    assert rows[0].bits == 32 and rows[1].bits < 16 and 1 < rows[0].perplexity < 64
    assert 0 < abs(rows[1].perplexity - rows[0].perplexity) < 0.1 * rows[0].perplexity
    assert perplexity.table(rows).count("\n") == len(rows) + 1
