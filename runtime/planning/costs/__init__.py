"""Costs: what runs, messages and a step's overheads are expected to take.

May import schedule and backends.
Start reading: prices.py.
"""
