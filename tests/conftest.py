"""Hypothesis draws the same examples every time and sets no deadline: the machine may be busy."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")
