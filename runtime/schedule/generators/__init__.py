"""Generators: a function per named schedule, from stages and micro-batches to compute lists.

May import schedule's instructions and programs.
Start reading: table.py lists them; gpipe.py is the shortest.
"""
