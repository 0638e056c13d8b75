"""Schedules: programs of instructions, their generators, proof, simulation and timelines.

Whole numbers only, no arrays, devices or threads; imports nothing else of the runtime.
Start reading: instructions.py and generators/table.py.
"""
