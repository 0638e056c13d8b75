"""MXNet's Executor, Module and BucketingModule on plans and sessions.

May import everything below frontends.
Start reading: executor.py and module.py.
"""
