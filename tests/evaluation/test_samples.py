"""Samples and labels: every form of data gives the same samples, and what does not fit is named."""

import numpy as np
import pytest
from PIL import Image

from qnn_ext import InputError, QParams, TensorSpec
from qnn_ext.evaluation.labels import Labels
from qnn_ext.evaluation.samples import Samples

SPEC = TensorSpec("image", (1, 4, 4, 1), "float32")
BATCHED = TensorSpec("image", (8, 4, 4, 1), "float32")
VALUES = np.random.default_rng(0).uniform(0, 1, (5, 4, 4, 1)).astype(np.float32)
NUMBERS = np.array([3, 0, 2, 9, 1])


def read(data, labels=None, specs=(SPEC,), **options) -> list[tuple[np.ndarray, object]]:
    known = {name: options.pop(name) for name in ("classes", "offset", "number") if name in options}
    return [
        (sample.values[0], sample.label) for sample in Samples(data, specs, labels=Labels(labels, **known), **options)
    ]


def check(found, labels=NUMBERS) -> None:
    assert [label for _, label in found] == list(labels)
    np.testing.assert_array_equal(np.concatenate([value for value, _ in found]), VALUES)


@pytest.fixture
def photos(tmp_path):
    """Five grey photos in folders `bee` and `ant`, and one file that is no data."""
    for index, name in enumerate(["bee/1.png", "ant/2.png", "bee/0.png", "ant/0.png", "bee/7.png"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((6, 6), 10 * index, np.uint8)).save(tmp_path / name)
    (tmp_path / "README.txt").write_text("photos")
    return tmp_path


@pytest.mark.parametrize("spec", [SPEC, BATCHED])
def test_arrays(spec):
    check(read(VALUES, NUMBERS, [spec]))
    check(read({"image": VALUES, "labels": NUMBERS}, specs=[spec]))
    check(read([(value, label) for value, label in zip(VALUES, NUMBERS, strict=True)], specs=[spec]))
    check(read(lambda: ({"image": VALUES[i : i + 2], "y": NUMBERS[i : i + 2]} for i in (0, 2, 4)), specs=[spec]))
    assert [label for _, label in read(VALUES)] == [None] * 5
    assert len(read(VALUES, NUMBERS, limit=3)) == 3


def test_files(tmp_path):
    np.savez(tmp_path / "all.npz", anything=VALUES, label=NUMBERS)
    check(read(tmp_path / "all.npz"))
    np.save(tmp_path / "labels.npy", NUMBERS)
    np.save(tmp_path / "images.npy", VALUES)
    check(read(tmp_path / "images.npy", tmp_path / "labels.npy"))
    folder = tmp_path / "parts"
    folder.mkdir()
    np.savez(folder / "0.npz", image=VALUES[:2], labels=NUMBERS[:2])
    np.savez(folder / "1.npz", image=VALUES[2:], labels=NUMBERS[2:])
    check(read(folder))
    (folder / "1.npz").unlink()
    (folder / "0.npz").unlink()
    for index, value in enumerate(VALUES):
        np.save(folder / f"{index}.npy", value)
    np.save(folder / "labels.npy", NUMBERS)  # the labels are no sample
    check(read(folder, folder / "labels.npy"))


def test_integers_of_a_quantized_input():
    """Data of the input's own dtype are its integers; all others are real values."""
    qparams = QParams(0.5, 3, "uint8")
    spec = TensorSpec("image", (1, 2), "uint8", qparams)
    integers = np.array([[3, 5], [255, 0]], np.uint8)
    for data in (integers, qparams.dequantize(integers)):
        found = [value for value, _ in read(data, specs=[spec])]
        np.testing.assert_array_equal(np.concatenate(found), [[0.0, 1.0], [126.0, -1.5]])


def test_sub_folders_are_classes(photos, tmp_path_factory):
    found = read(photos, number=2)
    assert [label for _, label in found] == [0, 0, 1, 1, 1]  # sorted by path, classes by name
    np.testing.assert_allclose([value.max() * 255 for value, _ in found], [30, 10, 20, 0, 40], rtol=1e-5)
    assert [label for _, label in read(photos, classes=["zebra", "bee", "ant"], offset=7)] == [2, 2, 1, 1, 1]
    synsets = tmp_path_factory.mktemp("names") / "synsets.txt"
    synsets.write_text("bee a bee, an insect\nant\n")
    assert [label for _, label in read(photos, classes=synsets)] == [1, 1, 0, 0, 0]
    with pytest.raises(InputError, match=r"has 2 sub-folders, but the model has 10 classes.*--classes"):
        read(photos, number=10)
    with pytest.raises(InputError, match=r"0\.png: several classes are named 'ant'"):
        read(photos, classes=["ant", "bee", "ant"])
    with pytest.raises(InputError, match=r"0\.png: label 'ant' is neither a number nor the name of a class"):
        read(photos, classes=["bee", "wasp"])


@pytest.mark.parametrize("separator", [" ", ",", "\t", ", "])
def test_lists_of_labels(photos, separator):
    names = ["ant/0.png", "2.png", "0.png", "1.png", "7"]  # with the folder, the file's name, without the suffix
    text = "".join(f"{name}{separator}{label}\n" for name, label in zip(names, [4, 5, 6, 7, 8], strict=True))
    (photos / "list.txt").write_text(text)
    assert [label for _, label in read(photos, photos / "list.txt")] == [4, 5, 6, 7, 8]
    (photos / "list.txt").write_text("9\n8\n\n7\n6\n5\n")
    assert [label for _, label in read(photos, photos / "list.txt", offset=1)] == [10, 9, 8, 7, 6]
    (photos / "list.txt").write_text(f"2.png{separator}1\n")
    with pytest.raises(InputError, match=r"ant/0\.png: .*list\.txt has no label for this file"):
        read(photos, photos / "list.txt")


def test_what_does_not_fit(photos, tmp_path):
    def error(*arguments, **options) -> str:
        with pytest.raises(InputError) as caught:
            read(*arguments, **options)
        return str(caught.value)

    (photos / "list.txt").write_text("2.png 1\n3\n")
    assert "found both" in error(photos, photos / "list.txt")
    (photos / "list.txt").write_text("\n")
    assert "there are no labels in it" in error(photos, photos / "list.txt")
    assert "there are only 4 labels" in error(VALUES, NUMBERS[:4])
    assert "there are 5 labels, but 3 samples" in error(VALUES[:3], NUMBERS)
    assert "has 5 samples, but labels of shape (4,)" in error({"image": VALUES, "labels": NUMBERS[:4]})
    assert "must have shape (N, 4, 4, 1), found (5, 4, 4)" in error(VALUES[..., 0])
    assert "must be float32, found int64" in error((VALUES * 9).astype(int))
    assert "the data set is empty" in error([])
    assert "no input 'image'" in error({"one": VALUES, "two": VALUES})
    assert "takes 2 inputs" in error(photos, specs=[SPEC, TensorSpec("other", (1, 2), "float32")])
    assert "found int" in error(3)
    assert "no such file or folder" in error(photos / "nothing")
    assert "must be an .npy or .npz file" in error(photos / "README.txt")
    (photos / "empty").mkdir()
    assert "has no .npy, .npz or image file" in error(photos / "empty")
    (photos / "ant" / "broken.png").write_bytes(b"no picture")
    assert "broken.png: neither an image" in error(photos)
    np.save(photos / "array.npy", VALUES)
    assert "both arrays (array.npy) and photos" in error(photos)
