"""Ctrl-C and SIGTERM: a step that must be whole is, and then they are heard."""

import signal
import sys
import threading

import pytest

from squareloss.lab.runs import interrupts
from squareloss.lab.runs.interrupts import sigterm_as_interrupt, whole

SIGNS = (signal.SIGINT, signal.SIGTERM)


def own(signum, frame):
    raise SystemExit(signum)


@pytest.fixture(autouse=True)
def handlers():
    """Those of an ordinary process, and none is left changed."""
    before = [signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, own)]
    yield
    assert [signal.getsignal(sign) for sign in SIGNS] == [signal.default_int_handler, own]
    for sign, handler in zip(SIGNS, before, strict=True):
        signal.signal(sign, handler)


@pytest.mark.parametrize("sign", SIGNS)
def test_a_step_is_whole_and_then_the_signal_is_heard(sign):
    steps = []
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt():
        with whole():
            signal.raise_signal(sign)
            steps.append("whole")
        steps.append("after")
    assert steps == ["whole"]


def test_a_step_leaves_other_handlers_and_errors_as_they_are():
    with pytest.raises(SystemExit), whole():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), sigterm_as_interrupt(), whole():
        raise ZeroDivisionError


@pytest.mark.parametrize("sign", SIGNS)
def test_a_signal_at_any_line_of_a_step_is_heard_and_its_handlers_are_put_back(sign):
    def trace(frame, event, argument):
        if frame.f_code.co_filename != interrupts.__file__:
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(sign)
        return trace

    for line in range(1, 100):
        left = [line]
        with sigterm_as_interrupt():
            before = [signal.getsignal(each) for each in SIGNS]
            sys.settrace(trace)
            try:
                with whole():
                    pass
            except KeyboardInterrupt:
                assert left[0] <= 0
            else:
                assert left[0] > 0, f"nothing came of a signal at line {line}"
            finally:
                sys.settrace(None)
            assert [signal.getsignal(each) for each in SIGNS] == before
        if left[0] > 0:
            break
    assert 5 < line < 99


def test_sigterm_is_heard_where_ctrl_c_is_ignored():
    """As in a job that a shell started in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(KeyboardInterrupt), sigterm_as_interrupt(), whole():
        signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_that_is_ignored_stays_so_and_one_that_is_handled_is_asked_on_sigterm():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with whole():
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, own)
    with pytest.raises(SystemExit), sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_thread_does_its_steps_too():
    done = []

    def run():
        with sigterm_as_interrupt(), whole():
            done.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [own]
