"""Mutators: functions (content of a file, source of chance) → content of a damaged file. A mutator that finds nothing
to change returns what it was given."""
