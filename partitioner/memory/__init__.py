"""Memory: bytes of each body and stage, and an address for every array of a body.

May import base and cutting.
Start reading: memory_plan.py.
"""
