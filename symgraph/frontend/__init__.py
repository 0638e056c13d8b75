"""Frontend: MXNet's Python interface (symbols, initializers, optimizers, metrics, iterators).

May import core, ops and passes.
Start reading: symbol.py; lower.py makes the typed graph.
"""
