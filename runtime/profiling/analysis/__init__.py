"""Analysis: figures of measured steps.

May import profiling.record.
Start reading: profile.py.
"""
