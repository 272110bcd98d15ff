"""The roof: what an application declares, and the worker that runs it.

An application needs what is exported here and nothing else.
"""

from ..dlq.policy import BreakerPolicy, Rule, fail_on, retry_on, review_on, skip_on, stop_on
from ..dlq.retry import RetryPolicy
from ..inbox.effect_rules import Asked, CannotTell, Done, Effect, NotDone, idempotent_key, probe, review
from ..inbox.errors import DependencyError, RecordError, RetryLater, TransientError
from ..inbox.event import Event, Partition, Record
from ..inbox.outcome import Dead, Reason, Retry, Skipped, Unknown
from ..inbox.scope import Scope, cloudevents, field, header, position
from ..projections.newer import write_newer, write_newer_blocking
from .app import App, Consumer
from .codecs.avro import Avro
from .codecs.json import Json
from .codecs.raw import Raw
from .context import BlockingContext, BlockingTx, CallNext, Context, EffectHandle, Handling, Tx

__all__ = [
    "App",
    "Asked",
    "Avro",
    "BlockingContext",
    "BlockingTx",
    "BreakerPolicy",
    "CallNext",
    "CannotTell",
    "Consumer",
    "Context",
    "Dead",
    "DependencyError",
    "Done",
    "Effect",
    "EffectHandle",
    "Event",
    "Handling",
    "Json",
    "NotDone",
    "Partition",
    "Raw",
    "Reason",
    "Record",
    "RecordError",
    "Retry",
    "RetryLater",
    "RetryPolicy",
    "Rule",
    "Scope",
    "Skipped",
    "TransientError",
    "Tx",
    "Unknown",
    "cloudevents",
    "fail_on",
    "field",
    "header",
    "idempotent_key",
    "position",
    "probe",
    "retry_on",
    "review",
    "review_on",
    "skip_on",
    "stop_on",
    "write_newer",
    "write_newer_blocking",
]
