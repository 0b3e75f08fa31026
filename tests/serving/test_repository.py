"""Repositories of models: versions, configurations, and what is none."""

import pytest

from qnn_ext.errors import ArtifactError
from qnn_ext.serving.repository import Entry, entry, names


@pytest.fixture
def folder(tmp_path):
    for path in ("digits/1", "digits/2", "digits/10", "digits/latest", "digits/011", "digits/12", "faces/3", "empty/1"):
        (tmp_path / path).mkdir(parents=True)
        if path not in ("empty/1", "digits/12"):
            (tmp_path / path / "model.qnn").write_bytes(b"")
    (tmp_path / "readme.txt").write_text("")
    return tmp_path


def test_models_have_versions_with_a_file(folder):
    assert names(folder) == ["digits", "faces"]


def test_the_highest_number_is_the_version(folder):
    assert entry(folder, "digits") == Entry("digits", 10, folder / "digits" / "10" / "model.qnn")
    assert entry(folder, "faces").version == 3


def test_configuration(folder):
    (folder / "faces" / "config.json").write_text('{"streams": 4, "num_threads": 2}')
    found = entry(folder, "faces")
    assert (found.streams, found.num_threads) == (4, 2)
    assert entry(folder, "digits").streams is None and entry(folder, "digits").num_threads == 1


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"stream": 4}', '{"streams": 0}', '{"streams": "4"}', '{"streams": true}', '{"streams": 1.5}'],
)
def test_configuration_that_is_wrong(folder, text):
    (folder / "faces" / "config.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"config\.json: (not JSON|a configuration has streams and num_threads)"):
        entry(folder, "faces")


@pytest.mark.parametrize("name", ["empty", "nothing", "..", ".", "", "digits/..", "../digits"])
def test_no_model_of_that_name(folder, name):
    with pytest.raises(ArtifactError, match=r"there is no model .*; there are digits, faces"):
        entry(folder, name)


def test_no_repository(tmp_path):
    with pytest.raises(ArtifactError, match="no such folder of models"):
        names(tmp_path / "none")
    with pytest.raises(ArtifactError, match="there is no model in it"):
        names(tmp_path)
