"""Processes and forks: child processes that end with this one, and calls under limits."""
