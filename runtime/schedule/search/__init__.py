"""Search: a list scheduler and branch and bound, for `schedule: auto`.

May import generators and replay.
Start reading: list_scheduler.py.
"""
