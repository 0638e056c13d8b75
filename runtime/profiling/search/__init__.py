"""Search: candidate partitions, simulated and then measured.

May import profiling.
Start reading: search.py.
"""
