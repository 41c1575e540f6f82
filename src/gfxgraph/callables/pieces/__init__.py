"""pieces: graphs from another compiler, captured and replayed wherever its code calls them.

graph_numbers.py  an FX graph's numbers, computed in Python, apart from its operations
device_numbers.py
           operations with a changing number, in the form that takes it as a tensor
piece.py   one FX graph from Dynamo, in a call that is more than one graph
region.py  one callable compiled by Inductor, or a piece: static inputs are bound to their addresses
"""
