"""Core: typed graphs, the operator registry and the reference interpreter.

Imports nothing else of ours.
Start reading: graph.py and registry.py.
"""
