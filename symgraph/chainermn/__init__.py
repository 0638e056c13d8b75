"""ChainerMN's model parallelism: chain lists, and layers whose channels are split over ranks.

May import everything in symgraph except app.
Start reading: chain_list.py.
"""
