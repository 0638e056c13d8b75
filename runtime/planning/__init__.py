"""Planning: from a symbol to a checked Plan (network, placement, schedule, memory, costs).

Starts nothing and measures nothing; may import schedule and backends.
Start reading: planner.py, then plan.py.
"""
