"""Frontends: how users reach the runtime (command lines, MXNet's modules, ChainerMN).

May import everything.
Start reading: cli/run.py and mxnet/executor.py.
"""
