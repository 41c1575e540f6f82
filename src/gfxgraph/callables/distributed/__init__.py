"""distributed: decisions that several processes take together.

ranks.py      what several processes decide together
agreed.py     a function that is captured on every rank or on none; on_ranks.py: where there are several
"""
