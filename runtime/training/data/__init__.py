"""Data: what a config's `data:` section asks for, as the batches of steps.

Each kind is one function, from the section to a Dataset; table.py has them by name. May import
planning and what is below it.
Start reading: base.py.
"""
