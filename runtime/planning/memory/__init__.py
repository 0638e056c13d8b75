"""Memory: where every array of a rank lies before the first step.

May import schedule and backends.
Start reading: arena.py.
"""
