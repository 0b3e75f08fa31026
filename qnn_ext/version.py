"""The version of this package, which `setup.py` reads too."""

VERSION = "0.2.0"
