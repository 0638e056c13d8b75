"""Checkpoints: written whole or not at all, and checked before anything is read from them.

May import engine, transports and below.
Start reading: state.py (what is saved), saves.py (when), folder.py (what is newest and whole).
"""
