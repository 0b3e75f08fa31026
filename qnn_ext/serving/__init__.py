"""Models behind the Open Inference Protocol (V2), in KServe's Python server.

    python -m qnn_ext.serving --models_dir models

The server, its endpoints and metrics are KServe's; here is what it asks of a model. TVM's compiler is not imported.
"""
