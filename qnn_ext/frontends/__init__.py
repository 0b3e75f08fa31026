"""Frontends: one package per framework, each a reader, a registry of converters and an entry function."""
