"""Calls in a process of their own, under limits of time and memory, for what foreign code does with untrusted files.

`call` runs a function of this package in a child process: a crash there, an endless loop or a lack of memory ends the
child and becomes an error here. It protects the process against accidents and exhaustion; it is no sandbox for code
that has taken control of the child, which has the rights of the user.
"""

from .client import Bounds, Ended, call
from .progress import working_on

__all__ = ["Bounds", "Ended", "call", "working_on"]
