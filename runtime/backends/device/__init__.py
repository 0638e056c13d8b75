"""Devices: arrays, streams, clocks and memory of CPUs and GPUs, and the kernel table.

May import symgraph and partitioner.
Start reading: arrays.py; table.py has the kernels of both kinds of device.
"""
