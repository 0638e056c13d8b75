"""Profiling: what steps took and why, reports of it, and the search for faster partitions.

    Trainer ─analysis→ Profile ─report→ text, HTML, CSV, traces

May import training and below.
Start reading: measurements.py, then analysis/profile.py.
"""
