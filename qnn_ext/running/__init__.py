"""Running compiled models: engine, executors and the `.qnn` file. Imports no `tvm`."""
