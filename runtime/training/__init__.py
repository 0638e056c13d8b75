"""Training: a config's whole run (job, batches, trainer, checkpoints).

May import engine and below.
Start reading: trainer.py.
"""
