"""Writes the site: `python -m scripts.site [FOLDER]`, by default build/site.

Sphinx reads a copy of docs/ with the pages that `pages` makes. Warnings are errors.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from .pages import ROOT, write_pages

EXECUTED = ROOT / "build" / "executed"  # tutorials with their output, until their code changes


def main() -> int:
    """Returns Sphinx's exit code."""
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # tutorials call qnn-ext
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "docs"
        shutil.copytree(ROOT / "docs", sources)
        write_pages(sources)
        return sphinx(
            ["-W", "--keep-going", "-q", "-D", f"nb_execution_cache_path={EXECUTED}", str(sources), str(site)]
        )


if __name__ == "__main__":
    sys.exit(main())
