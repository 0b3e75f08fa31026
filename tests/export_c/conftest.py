"""A library that several tests use."""

from pathlib import Path

import pytest

import qnn_ext
from qnn_ext.export_c import Exported
from tests.cases.bundled import module_of

LEVELS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512", "avx2", "x86-64")


@pytest.fixture(scope="session")
def every_level(tmp_path_factory) -> Exported:
    """A bundled model for all levels of x86-64, as a static and a shared library."""
    engine = qnn_ext.build(module_of("digits_cnn_int8.tflite"), LEVELS, num_threads=1, code=False)
    return engine.export_c(Path(tmp_path_factory.mktemp("levels")), "digits", shared=True)
