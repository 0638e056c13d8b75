"""Command lines: `symgraph`, `python -m symgraph.run`, `python -m runtime`.

May import everything.
Start reading: command.py, then run.py.
"""
