"""The program `qnn-ext`, outside of the package: what is imported with that takes a sixth of a second, in which a
signal shall end the program as it does later, with one line. `qnn_ext.cli` listens from then on.
"""

from __future__ import annotations

import os
import signal

_WORDS = {"SIGINT": b"interrupted\n", "SIGTERM": b"terminated\n", "SIGHUP": b"hung up\n"}


def main() -> None:
    """Entry point."""
    for name, word in _WORDS.items():
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _, word=word: (os.write(2, word), os._exit(128 + number)))
    from qnn_ext.cli import main

    main()


if __name__ == "__main__":
    main()
