"""Backends: what a device is, and how one bound operator call or body runs on it.

May import symgraph and partitioner; nothing else of the runtime.
Start reading: table.py (the kernel table) and bodies.py.
"""
