"""The façade of Relay's names, qnn_ext.compat."""
