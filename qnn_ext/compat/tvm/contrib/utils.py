"""tvm.contrib.utils: temporary folders."""

from __future__ import annotations

import os
import tempfile

from ...absent import absent

__all__ = ["TempDirectory", "tempdir"]


class TempDirectory:
    """A folder that is removed with this object."""

    def __init__(self, custom_path: str | None = None, keep_for_debug: bool | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(dir=custom_path)
        self.temp_dir = self.path = self._folder.name

    def relpath(self, name: str) -> str:
        """A path inside the folder."""
        return os.path.join(self.temp_dir, name)

    def listdir(self) -> list[str]:
        return os.listdir(self.temp_dir)

    def remove(self) -> None:
        self._folder.cleanup()


def tempdir(custom_path: str | None = None, keep_for_debug: bool | None = None) -> TempDirectory:
    """A temporary folder."""
    return TempDirectory(custom_path, keep_for_debug)


__getattr__ = absent("tvm.contrib.utils")
