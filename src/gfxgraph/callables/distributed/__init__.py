"""distributed: decisions that several processes take together.

ranks.py      decisions of a group of ranks
agreed.py     a function captured on every rank or on none
"""
