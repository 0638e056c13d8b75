"""Reports: a profile as text, tables, one HTML page and traces.

May import analysis.
Start reading: files.py.
"""
