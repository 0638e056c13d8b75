"""Trials: candidate partitions, measured side by side in alternation.

May import analysis, report and training.
Start reading: trial.py and compare.py.
"""
