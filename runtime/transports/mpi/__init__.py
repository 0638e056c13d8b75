"""MPI: ranks as processes that mpiexec started.

May import transports.base and backends.
Start reading: cluster.py.
"""
