"""What PyTorch's operators do in training only."""

from __future__ import annotations

from ...errors import UnsupportedOperatorError


def check_training(train: bool, dropout: float) -> None:
    """Raises UnsupportedOperatorError for dropout in training mode."""
    if train and dropout:
        raise UnsupportedOperatorError(
            "dropout in training mode is not supported; call model.eval() before exporting the model"
        )
