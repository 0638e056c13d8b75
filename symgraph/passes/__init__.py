"""Passes: functions from a graph to a checked graph (gradients, merging, sharding, precision).

May import core and ops.
Start reading: gradients.py.
"""
