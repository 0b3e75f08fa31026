"""`python -m qnn_ext`: the command line."""

from .cli import main

main()
