"""Data sets: every form, cut to the model's batch, several passes, and one clear error for each thing that is wrong."""

import warnings

import numpy as np
import pytest
from PIL import Image

from qnn_ext.errors import QuantizationError, QuantizationWarning
from qnn_ext.module import TensorSpec
from qnn_ext.quantize import ImageFolder, batches

X = TensorSpec("x", (1, 3), "float32")
IDS = TensorSpec("ids", (1, 2), "int64")
DATA = np.arange(12, dtype=np.float32).reshape(4, 3)


class Loader:
    """Yields batches with labels each time it is iterated, as torch's DataLoader does."""

    def __iter__(self):
        yield DATA[:3], np.array([1, 2, 3])
        yield DATA[3:], np.array([4])


class OldSequence:
    """Iterated by index, as torch's data sets are."""

    def __getitem__(self, index):
        if index >= 4:
            raise IndexError
        return DATA[index], 7


FORMS = {
    "array": lambda tmp: DATA,
    "dict of arrays": lambda tmp: {"x": DATA},
    "list of dicts": lambda tmp: [{"x": row[None]} for row in DATA],
    "list of batches": lambda tmp: [DATA[:2], DATA[2:]],
    "samples without batch dimension": lambda tmp: list(DATA),
    "tuples with labels": lambda tmp: [(row, 3) for row in DATA],
    "nested lists": lambda tmp: [{"x": row.tolist()} for row in DATA],
    "callable": lambda tmp: lambda: iter(DATA),
    "generator": lambda tmp: (row for row in DATA),
    "generator of dicts": lambda tmp: ({"x": row[None], "label": 3} for row in DATA),
    "generator of tuples": lambda tmp: ((row, 3) for row in DATA),
    "loader": lambda tmp: Loader(),
    "indexed": lambda tmp: OldSequence(),
    "npz": lambda tmp: saved(tmp / "set.npz", np.savez, x=DATA, y=DATA[:, 0]),
    "npz, one array of another name": lambda tmp: saved(tmp / "set.npz", np.savez, images=DATA),
    "npy": lambda tmp: saved(tmp / "set.npy", np.save, DATA),
    "folder": lambda tmp: folder(tmp),
    "float64": lambda tmp: DATA.astype(np.float64),
}


def saved(path, save, *arrays, **named):
    save(path, *arrays, **named)
    return str(path)


def folder(tmp):
    np.save(tmp / "a.npy", DATA[:1])
    np.savez(tmp / "b.npz", x=DATA[1:3])
    np.save(tmp / "c.npy", DATA[3])
    (tmp / "README.md").write_text("samples")
    return tmp


@pytest.mark.parametrize("form", FORMS)
def test_forms(tmp_path, form):
    stream = batches(FORMS[form](tmp_path), [X])
    for _ in range(2):  # several passes give the same
        found = list(stream)
        assert [[array.shape for array in item] for item in found] == [[(1, 3)]] * 4
        assert all(item[0].dtype == np.float32 for item in found)
        np.testing.assert_array_equal(np.concatenate([item[0] for item in found]), DATA)
    assert stream.count == 4


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.from_numpy(DATA)), batch_size=3)
    for dataset in (loader, torch.from_numpy(DATA).requires_grad_()):
        np.testing.assert_array_equal(np.concatenate([item[0] for item in batches(dataset, [X])]), DATA)


@pytest.mark.parametrize(
    "dataset,count", [(DATA, 4), ({"x": DATA}, 4), ([DATA[:3], DATA[3]], 4), ([(DATA, 1)], 4), (lambda: DATA, None)]
)
def test_the_count_before_the_first_pass(dataset, count):
    assert batches(dataset, [X]).count == count


def test_a_generator_abandoned_and_read_again():
    pulled = []

    def source():
        for row in DATA:
            pulled.append(row)
            yield row

    stream = batches(source(), [X])
    first = next(iter(stream))
    assert len(pulled) == 1  # nothing is read ahead
    assert len(list(stream)) == 4
    assert len(pulled) == 4
    np.testing.assert_array_equal(first[0], DATA[:1])


def test_larger_batches_of_the_model():
    spec = TensorSpec("x", (2, 3), "float32")
    found = [item[0] for item in batches([DATA[:3], DATA[3:], DATA[:1]], [spec])]
    np.testing.assert_array_equal(np.stack(found), [DATA[:2], DATA[2:]])  # the last sample fills no batch
    for stream in (batches(list(DATA), [spec]), batches(iter(DATA), [spec])):
        np.testing.assert_array_equal(np.stack([item[0] for item in stream]), [DATA[:2], DATA[2:]])
        assert stream.count == 2
    assert batches(list(DATA), [spec]).count == 2
    with pytest.raises(QuantizationError, match="has 1 samples, but one batch of this model needs 2"):
        list(batches(DATA[:1], [spec]))


def test_several_inputs():
    ids = np.arange(8).reshape(4, 2)
    expected = [(row[None], two[None]) for row, two in zip(DATA, ids, strict=True)]
    for dataset in ({"ids": ids, "x": DATA}, [(DATA[:2], ids[:2]), (DATA[2:], ids[2:])], [{"ids": ids, "x": DATA}]):
        found = list(batches(dataset, [X, IDS]))
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one[0], two[0])
            np.testing.assert_array_equal(one[1], two[1])
    with pytest.raises(QuantizationError, match=r"different batch sizes \('x': 4, 'ids': 3\)"):
        list(batches({"ids": ids[:3], "x": DATA}, [X, IDS]))


def test_a_dimension_in_front_counts_batches():
    """As in a stack of what a recurrent model takes, whose batch is not its first dimension."""
    state = TensorSpec("state", (2, 1, 3), "float32")
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 1, 3)
    stream = batches({"state": values, "x": DATA[:, None]}, [state, X])
    assert stream.count == 4
    for index, (found, row) in enumerate(stream):
        np.testing.assert_array_equal(found, values[index])
        np.testing.assert_array_equal(row, DATA[index : index + 1])
    two = TensorSpec("x", (2, 3), "float32")
    np.testing.assert_array_equal(
        np.stack([item[0] for item in batches(DATA.reshape(2, 2, 3), [two])]), [DATA[:2], DATA[2:]]
    )


def test_scalars_are_one_value_or_one_for_each_batch():
    rate, flag = TensorSpec("rate", (), "int64"), TensorSpec("flag", (), "bool")
    found = list(batches({"x": DATA, "rate": np.array(16000), "flag": np.array([0, 1, 1, 0])}, [rate, X, flag]))
    assert [int(one[0]) for one in found] == [16000] * 4 and [bool(one[2]) for one in found] == [0, 1, 1, 0]
    np.testing.assert_array_equal(np.concatenate([one[1] for one in found]), DATA)
    assert all(one[0].dtype == np.int64 and one[2].dtype == bool and one[2].shape == () for one in found)
    two = TensorSpec("x", (2, 3), "float32")
    rows = [{"x": row, "rate": index} for index, row in enumerate(DATA)]
    assert [(int(one[0]), one[1].shape) for one in batches(rows, [rate, two])] == [(1, (2, 3)), (3, (2, 3))]
    assert [int(one[0]) for one in batches([3, 5], [rate])] == [3, 5]
    with pytest.raises(QuantizationError, match=r"different batch sizes \('rate': 3, 'x': 4\)"):
        list(batches({"x": DATA, "rate": np.arange(3)}, [rate, X]))
    with pytest.raises(QuantizationError, match=r"'rate' must have shape \(\) or \(N,\), found \(1, 1\)"):
        list(batches({"x": DATA, "rate": np.ones((1, 1), np.int64)}, [rate, X]))
    with pytest.raises(QuantizationError, match="must be bool, found int64"):
        list(batches({"x": DATA, "flag": np.array(2)}, [flag, X]))


def test_integers_of_another_width():
    found = list(batches(np.array([[1, 2]], np.int32), [IDS]))
    assert found[0][0].dtype == np.int64


def test_photos(tmp_path, rng):
    spec = TensorSpec("image", (1, 3, 4, 5), "float32")
    for name in ("b.png", "a.png"):
        pixels = np.full((8, 10, 3), 255 if name == "a.png" else 0, np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    found = [item[0] for item in batches(tmp_path, [spec])]
    assert [array.max() for array in found] == [1.0, 0.0]
    assert found[0].shape == spec.shape
    found = [item[0] for item in batches(ImageFolder(tmp_path, "-1..1", limit=1), [spec])]
    assert [array.min() for array in found] == [1.0]
    (tmp_path / "c.png").write_bytes(b"no image")
    with pytest.raises(QuantizationError, match=r"c\.png"):
        list(batches(tmp_path, [spec]))


def test_photos_in_a_folder_for_each_class(tmp_path):
    """As `accuracy` reads them; those of hidden folders are no data."""
    for value, name in enumerate(("cat/1.png", "dog/0.png", ".thumbnails/0.png")):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(np.full((4, 5, 3), 255 - value, np.uint8)).save(tmp_path / name)
    found = batches(tmp_path, [TensorSpec("image", (1, 3, 4, 5), "float32")])
    assert [round(float(item[0].max()) * 255) for item in found] == [255, 254] and found.count == 2


def test_arrays_whose_axes_are_in_another_order():
    images = np.zeros((2, 3, 6, 5), np.float32)
    with pytest.raises(QuantizationError, match=r"found \(2, 3, 6, 5\): transpose its axes to \(0, 2, 3, 1\)"):
        list(batches(images, [TensorSpec("image", (1, 6, 5, 3), "float32")]))
    with pytest.raises(QuantizationError, match=r"found \(2, 3, 6, 5\)$"):
        list(batches(images, [TensorSpec("image", (1, 7, 5, 3), "float32")]))


NAN = DATA.copy()
NAN[2, 1] = np.nan
NAN[3, 0] = np.inf


@pytest.mark.parametrize(
    "dataset,message",
    [
        (None, "calibration needs a data set"),
        (3, "found int"),
        ([], "the data set is empty"),
        (DATA[:0], "the data set is empty"),
        pytest.param(iter([]), "the data set is empty", id="an iterator without items"),
        (np.zeros((4, 2), np.float32), r"sample 0 .* input 'x' must have shape \(N, 3\), found \(4, 2\)"),
        ([DATA, DATA[:, :2]], "sample 1 of the data set"),
        ([{"y": DATA}], "has no input 'x'; found 'y'"),
        ([()], "has 0 arrays, but this model takes 1: 'x'"),
        (DATA.astype(np.uint8), "must be float32, found uint8; normalize images first"),
        ([{"x": "abc"}], "input 'x' must have shape"),
        ([[[[1.0, 2.0, 3.0], [1.0]]]], "sample 0 .* not an array"),
        (NAN, "holds 2 values that are NaN or infinite"),
        pytest.param(iter([{"x": object()}]), "not made of arrays", id="an iterator of objects"),
        ("absent", "absent: no such data set"),
    ],
    ids=str,
)
def test_what_is_wrong(dataset, message):
    with pytest.raises(QuantizationError, match=message):
        list(batches(dataset, [X]))


def test_an_array_for_two_inputs():
    with pytest.raises(QuantizationError, match="one array, but this model takes 2 inputs: 'x', 'ids'"):
        batches(DATA, [X, IDS])
    with pytest.raises(QuantizationError, match="has 1 arrays, but this model takes 2"):
        list(batches([(DATA,)], [X, IDS]))


def test_values_that_an_integer_cannot_hold():
    with pytest.raises(QuantizationError, match="must be int8, found int64"):
        list(batches(np.array([[300]]), [TensorSpec("x", (1, 1), "int8")]))


def test_wrong_files(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(QuantizationError, match=r"has no \.npy, \.npz or image file"):
        batches(tmp_path / "empty", [X])
    with pytest.raises(QuantizationError, match="has no photo"):
        batches(ImageFolder(tmp_path / "empty"), [X])
    with pytest.raises(QuantizationError, match="no such folder"):
        batches(ImageFolder(tmp_path / "absent"), [X])
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(QuantizationError, match=r"must be an \.npy or \.npz file"):
        batches(tmp_path / "a.txt", [X])
    for name in ("broken.npz", "broken.npy"):
        (tmp_path / name).write_bytes(b"\x93NUMPY broken")
        with pytest.raises(QuantizationError, match=f"{name}: not a {name[-4:]} file of numbers"):
            list(batches(tmp_path / name, [X]))
        (tmp_path / name).unlink()
    Image.new("RGB", (2, 2)).save(tmp_path / "photo.png")
    np.save(tmp_path / "array.npy", DATA)
    with pytest.raises(QuantizationError, match="arrays and photos"):
        batches(tmp_path, [X])
    np.savez(tmp_path / "other.npz", y=DATA, z=DATA)
    with pytest.raises(QuantizationError, match=r"other\.npz: there is no array 'x'; found 'y', 'z'"):
        batches(tmp_path / "other.npz", [X])


@pytest.mark.parametrize("value", [0, 0.5])
def test_constant_data_are_a_warning_once(value):
    found = batches([np.full((2, 3), value, np.float32)] * 3, [X])
    with pytest.warns(QuantizationWarning, match=f"the data set is constant: 'x' is {value:.1f} everywhere"):
        assert len(list(found)) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(found)
        for one in (DATA[:1], [np.full(3, 1, np.float32), np.full(3, 2, np.float32)]):
            list(batches(one, [X]))
        list(batches({"x": np.zeros((2, 3), np.float32), "ids": np.arange(4).reshape(2, 2)}, [X, IDS]))
        list(batches([np.float32(3)], [TensorSpec("s", (), "float32")]))
