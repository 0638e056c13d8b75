"""Search: candidate partitions, simulated and then measured.

May import trials and below.
Start reading: search.py.
"""
