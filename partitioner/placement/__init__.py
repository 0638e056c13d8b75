"""Placement: from ctx_group marks and a group2ctx map to the stage of every node.

May import base.
Start reading: group2ctx.py.
"""
