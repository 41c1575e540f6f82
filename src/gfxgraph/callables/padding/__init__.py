"""padding: whether a call may run at a larger size with padded rows, decided from its graph.

judge.py  one callable's calls: verdict, one comparison, refusals
rows.py   follows a dynamic dim through a graph to a verdict
rules.py  which operations keep rows apart
"""
