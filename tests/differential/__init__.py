"""Random graphs: the engine of every CPU against the interpreter, and both against the framework. See `__main__.py`."""
