"""The application: config files, command-line parsing, text corpora, console output and logs.

May import everything in symgraph.
Start reading: config.py.
"""
