"""Views: timelines as text charts, pictures, traces and figures.

May import schedule and replay.
Start reading: draw.py.
"""
