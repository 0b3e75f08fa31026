"""`python -m scripts.site`: the documentation as a site, from docs/, docstrings, commands and executed tutorials."""
