"""Networks in PyTorch files: what `torch.export.save` writes, read without PyTorch or pickle.

May import interchange and below.
Start reading: importer.py.
"""

from symgraph.interchange.torch.importer import from_torch

__all__ = ["from_torch"]
