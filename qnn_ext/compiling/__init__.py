"""From a QNN module to machine code."""
