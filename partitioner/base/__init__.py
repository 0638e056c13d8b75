"""Base: the partitioner's types, stages, time segments and the body of each node.

May import symgraph.
Start reading: types.py.
"""
