"""Base: the partitioner's types, stages, time segments and the owner of each node.

May import symgraph.
Start reading: types.py.
"""
