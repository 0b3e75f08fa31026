"""Calls in separate processes, under limits of time and memory, for third-party code that handles untrusted files.

`call` runs a function of this package in a child process: a crash, an endless loop or a lack of memory there ends only
the child and becomes an error here. It protects this process against accidents and exhaustion; it is no sandbox for
code that has taken control of the child, which has the user's rights.
"""

from .client import Bounds, Ended, call
from .progress import working_on

__all__ = ["Bounds", "Ended", "call", "working_on"]
