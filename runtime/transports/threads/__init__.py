"""Threads: ranks as threads of one process, which hand arrays over in memory.

May import transports.base and backends.
Start reading: cluster.py.
"""
