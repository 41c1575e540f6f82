"""distributed: functions with collectives, of several processes.

ranks.py      the size that all ranks run a call at
agreed.py     a function with collectives, captured by every rank at the same call
"""
