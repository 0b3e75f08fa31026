"""What is counted: ranks with ties, a user's metric and how it fails, agreement bit for bit."""

import numpy as np
import pytest

from qnn_ext import InputError, TensorSpec
from qnn_ext.evaluation.metrics import Agreeing, Answers, Collected, load_metric
from qnn_ext.evaluation.samples import Sample

OUTPUT = TensorSpec("scores", (1, 6), "float32")


def sample(label) -> Sample:
    return Sample([], label, "sample 7 of the data")


def test_ranks_follow_a_stable_sort(rng):
    answers = Answers([1, 3], 0)
    right = {1: 0, 3: 0}
    for _ in range(200):
        scores, label = rng.integers(0, 4, 6), int(rng.integers(0, 6))  # many ties
        answers.add([scores.reshape(1, 1, 6)], sample(label))
        order = np.argsort(-scores, kind="stable").tolist()
        for rank in right:
            right[rank] += order.index(label) < rank
    assert answers.result() == {f"top-{rank}": count / 200 for rank, count in right.items()}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "sample 7 of the data has no label"),
        (6, "label 6, but the model's classes are 0 … 5.*--label-offset"),
        (-1, "label -1, but"),
        (0.5, "must be the number of a class, found 0.5"),
        (np.zeros(3, int), "must be the number of a class"),
    ],
)
def test_unusable_labels(label, message):
    with pytest.raises(InputError, match=message):
        Answers([1], 0).add([np.zeros(6)], sample(label))


def test_a_metric_gets_all_outputs_and_labels():
    seen = []

    def mine(outputs, labels):
        seen.append((outputs, labels))
        return {"one": 1, "two": np.float32(2)}

    single = Collected(mine, [OUTPUT])
    double = Collected(mine, [OUTPUT, TensorSpec("boxes", (1, 2), "float32")])
    for value in range(3):
        single.add([np.full(6, value)], sample(value))
        double.add([np.full(6, value), np.full(2, -value)], sample(None))
    assert single.result() == double.result() == {"one": 1.0, "two": 2.0}
    assert seen[0][0].tolist() == [[value] * 6 for value in range(3)] and seen[0][1].tolist() == [0, 1, 2]
    assert seen[1][0]["boxes"].tolist() == [[0, 0], [-1, -1], [-2, -2]] and seen[1][1] is None


def test_a_metric_that_fails():
    def mine(outputs, labels):
        return outputs["missing"]

    collected = Collected(mine, [OUTPUT])
    collected.add([np.zeros(6)], sample(1))
    with pytest.raises(InputError, match="metric 'mine' failed: IndexError"):
        collected.result()
    collected.add([np.zeros(6)], sample(None))
    with pytest.raises(InputError, match="only 1 of 2 samples have a label"):
        collected.result()


def test_metrics_by_name(tmp_path):
    (tmp_path / "mine.py").write_text("def one(outputs, labels):\n    return 1\nnumber = 3\n")
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    assert load_metric(f"{tmp_path}/mine.py:one")(None, None) == 1
    assert load_metric("math:hypot")(3, 4) == 5
    for text, message in [
        ("one", "is module:function or file.py:function"),
        ("nothing_of_that_name:f", "cannot be imported: ModuleNotFoundError"),
        (f"{tmp_path}/broken.py:f", "cannot be imported: ModuleNotFoundError"),
        (f"{tmp_path}/nothing.py:f", "cannot be imported: FileNotFoundError"),
        (f"{tmp_path}/mine.py:number", "no function 'number'.*it has one"),
    ]:
        with pytest.raises(InputError, match=message):
            load_metric(text)


def test_agreement():
    agreeing = Agreeing(0)
    agreeing.add([np.array([1.0, 2.0])], [np.array([1.0, 2.0])])
    agreeing.add([np.array([1.0, 2.0])], [np.array([1.0, 3.0])])
    agreeing.add([np.array([1.0, 2.0])], [np.array([2.0, 1.0])])
    agreeing.add([np.array([1, 2], np.int8)], [np.array([1, 2], np.uint8)])
    assert (agreeing.result().same, agreeing.result().equal) == (0.75, 0.25)
