"""A cluster on one machine: hosts as network namespaces, joined by links that are slow or break.

Start reading: __main__.py.
"""
