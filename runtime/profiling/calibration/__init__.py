"""Calibration: what this machine's kernels and links take.

May import planning.costs and below.
Start reading: cpu_kernels.py.
"""
