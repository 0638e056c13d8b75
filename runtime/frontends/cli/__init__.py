"""Command lines: `python -m symgraph.run` and `python -m runtime simulate`.

May import everything.
Start reading: run.py.
"""
