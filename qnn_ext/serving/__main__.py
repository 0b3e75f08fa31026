"""`python -m qnn_ext.serving --models_dir models --http_port 8080`: KServe's server with a folder of models."""

from __future__ import annotations

import argparse
import sys

from ..errors import QnnError


def main() -> None:
    """Serve until a signal ends it; all other options are KServe's."""
    try:
        import kserve
        from kserve import model_server

        from .kserve import Repository

        parser = argparse.ArgumentParser("python -m qnn_ext.serving", parents=[model_server.parser])
        parser.add_argument("--models_dir", required=True, help="The folder with models, MODEL/VERSION/model.qnn")
        models = Repository(parser.parse_args().models_dir)
        models.load_models()
    except ImportError as error:
        sys.exit(f"serving needs KServe's Python server: pip install 'qnn-ext[kserve]' ({error})")
    except QnnError as error:
        sys.exit(str(error))
    kserve.ModelServer(registered_models=models).start([])


if __name__ == "__main__":
    main()
