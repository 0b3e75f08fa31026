"""python -m tests.fuzz.seeds.write FORMAT FOLDER: write a format's seeds."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

from . import seeds

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, content in seeds(sys.argv[1]):
        Path(sys.argv[2], re.sub(r"[^\w.=-]+", "_", name)).write_bytes(content)
