"""Mutators: functions (content of a file, random source) → content of a damaged file. A mutator that finds nothing to
change returns its input."""
