"""Planning: from a symbol to a checked Plan (network, placement, schedule, memory, costs).

May import schedule and backends; starts nothing and measures nothing.
Start reading: planner.py, then plan.py.
"""
