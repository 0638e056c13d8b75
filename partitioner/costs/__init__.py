"""Costs: flops, bytes and seconds of nodes, and machines with their devices and links.

May import base.
Start reading: cost.py and machine.py.
"""
