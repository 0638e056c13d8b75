"""Lowering: compute lists become programs with sends, receives, frees and updates.

May import generators and replay.
Start reading: lower.py.
"""
