"""Cutting: one graph per stage and phase, with an edge for each value that crosses stages.

May import base, placement and costs.
Start reading: cut.py, which inserts the sends and receives.
"""
