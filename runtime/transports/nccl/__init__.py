"""NCCL: MPI ranks whose arrays go from GPU to GPU.

May import transports.base, transports.mpi and backends.
Start reading: cluster.py.
"""
