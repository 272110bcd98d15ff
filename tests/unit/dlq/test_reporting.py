"""Log lines about failures say what decided."""

from __future__ import annotations

from structlog.testing import capture_logs

from tidegate.dlq.decisions import Transient
from tidegate.dlq.policy import retry_on
from tidegate.dlq.reporting import COMMAND, report_retry
from tidegate.dlq.rules import decide
from tidegate.inbox.event import Event, Record
from tidegate.inbox.faults import classify

EVENT = Event(
    object(), Record("shop.orders", 3, 17, b"k", b"v"), type="shop.OrderPlaced", event_id=b"e" * 16, id_text="o-17",
    payload_hash=5,
)  # fmt: skip


def test_a_retry_names_the_rule_that_wants_it_and_its_reason() -> None:
    error = ValueError("code 91")
    decision = decide(error, classify, [retry_on(ValueError, because="the bank opens again")])
    assert isinstance(decision, Transient)
    with capture_logs() as lines:
        report_retry(EVENT, "charge", COMMAND, error, 1, 0.25, decision)
    (line,) = lines
    assert line["because"] == "the bank opens again"
    assert line["led_by"] == "rule 1 (retry on ValueError)"
    assert line["delay_s"] == 0.25
