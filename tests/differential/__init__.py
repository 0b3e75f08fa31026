"""Random graphs: every CPU's engine against the interpreter, both against the framework. See `__main__.py`."""
