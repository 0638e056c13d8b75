"""Views: partitions and networks as tables and pictures.

May import everything in partitioner.
Start reading: report.py.
"""
