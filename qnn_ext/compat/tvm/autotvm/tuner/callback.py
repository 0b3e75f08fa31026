"""autotvm.callback."""

from ....absent import absent
from ....tuning.tuners import Monitor, log_to_file, progress_bar

__all__ = ["Monitor", "log_to_file", "progress_bar"]

__getattr__ = absent("autotvm.callback", {"log_to_database": "logs are files: log_to_file"})
