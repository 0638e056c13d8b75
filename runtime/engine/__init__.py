"""Engine: what runs a plan (ranks, workers, sessions, optimizer steps).

May import planning, transports, schedule and backends.
Start reading: session.py; worker.py runs the instructions.
"""
