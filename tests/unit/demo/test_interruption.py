"""A signal ends the demo, wherever it arrives."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tidegate.consumers.demo import run


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The test run's own handlers are back behind the test."""
    before = {number: signal.getsignal(number) for number in run.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_inside_a_c_function_that_makes_another_exception_of_it_still_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """confluent_kafka's produce() turned Ctrl-C into "expected header key to be unicode string"."""

    def produce(*_: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise TypeError("expected header key to be unicode string") from None
        return 0

    monkeypatch.setattr(run, "_run", produce)
    assert run.demo(keep=False) == run.INTERRUPTED
    assert "nothing is left behind" in capsys.readouterr().out


def test_what_no_signal_caused_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise TypeError("a bug")

    monkeypatch.setattr(run, "_run", broken)
    with pytest.raises(TypeError, match="a bug"):
        run.demo(keep=False)
