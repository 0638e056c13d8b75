"""The application: config files, command lines, text corpora, console output and step logs.

May import everything in symgraph.
Start reading: config.py.
"""
