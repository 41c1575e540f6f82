"""distributed: functions with collectives, of several processes.

agreed.py     a function with collectives, captured by every rank at the same call
"""
