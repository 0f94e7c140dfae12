"""Hypothesis draws the same examples every time, with no deadline: the machine may be busy. And what several files share."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=50)
settings.load_profile("repeatable")


@pytest.fixture
def one_thread():
    """Torch on one thread, as when several processes share the cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def net():
    """The adversarially trained network of `attack_nets`."""
    from attack_nets import trained

    return trained("adversarial")


@pytest.fixture(scope="session")
def points():
    """Sixty test digits in [0, 1] and their labels."""
    from attack_nets import digits

    return digits()[2][:60], digits()[3][:60]
