"""Analysis: figures of measured steps.

May import training and below.
Start reading: profile.py.
"""
