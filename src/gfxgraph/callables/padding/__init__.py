"""padding: whether a call may run at a larger size with padded rows, decided from its graph.

padding_check.py  one callable's calls: verdict, one comparison, refusals
row_independence.py
                  follows a dynamic dim through a graph to a verdict
operator_rules.py which operations keep rows apart
"""
