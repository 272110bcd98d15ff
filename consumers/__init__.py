"""The roof: what an application declares, and the worker that runs it.

An application needs what is exported here and nothing else.
"""

from ..dlq.retry import RetryPolicy
from ..inbox.errors import DependencyError, RecordError, TransientError
from ..inbox.event import Event, Partition, Record
from ..inbox.outcome import Reason
from ..inbox.scope import Scope, cloudevents, field, header, position
from .app import App, Consumer
from .codecs.avro import Avro
from .codecs.json import Json
from .codecs.raw import Raw
from .context import BlockingContext, BlockingTx, Context, Tx

__all__ = [
    "App",
    "Avro",
    "BlockingContext",
    "BlockingTx",
    "Consumer",
    "Context",
    "DependencyError",
    "Event",
    "Json",
    "Partition",
    "Raw",
    "Reason",
    "Record",
    "RecordError",
    "RetryPolicy",
    "Scope",
    "TransientError",
    "Tx",
    "cloudevents",
    "field",
    "header",
    "position",
]
