"""Profiling of partition choices: measure steps, say where their time goes, show it, compare.

record ─figures→ Profile ─words→ terminal, page → HTML, tables → CSV
"""
