"""Backends: what a device is, and how one bound operator call or body runs on it.

May import symgraph and partitioner; nothing else of the runtime.
Start reading: bodies.py; device/table.py has the kernel table.
"""
