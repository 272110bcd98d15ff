"""What each of Kafka's error codes means to a consumer, a commit and a producer: one table. No IO.

Codes from the broker are positive, librdkafka's own are negative. A code that is not listed is `RETRY`: the client goes
on and the code is counted. Source: librdkafka's rdkafka.h and Kafka's protocol errors; which are harmless is what
consumers in the field tripped over (B03, B05, B12).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError

from .ports import CommitAnswer, SendAnswer


class Kind(enum.Enum):
    """What the client does about an error."""

    IGNORE = "ignore"
    """No error at all."""
    WARN = "warn"
    """Counted and logged; the client heals itself."""
    REBALANCE = "rebalance"
    """Our membership is old: work is dropped, polling goes on and rejoins."""
    RETRY = "retry"
    """Not now: the same call may succeed later."""
    TOPIC = "topic"
    """This topic's subscription does not work; latched until metadata shows otherwise."""
    AUTHORISATION = "authorisation"
    """The principal may not do this: needs a person."""
    OUT_OF_RANGE = "out_of_range"
    """The position is outside the log: the start position is decided anew."""
    FATAL = "fatal"
    """The client instance is dead."""


KINDS: Final[Mapping[int, Kind]] = {
    KafkaError.NO_ERROR: Kind.IGNORE,
    KafkaError._PARTITION_EOF: Kind.IGNORE,
    # The whole cluster away is weather: librdkafka reconnects, and readiness shows it.
    KafkaError._ALL_BROKERS_DOWN: Kind.WARN,
    KafkaError._TRANSPORT: Kind.WARN,
    KafkaError._RESOLVE: Kind.WARN,
    KafkaError._SSL: Kind.WARN,
    # Credentials that rotate are wrong for a moment; a member that never gets in is not ready, which is seen.
    KafkaError._AUTHENTICATION: Kind.WARN,
    KafkaError.SASL_AUTHENTICATION_FAILED: Kind.WARN,
    KafkaError._LOG_TRUNCATION: Kind.OUT_OF_RANGE,
    KafkaError._AUTO_OFFSET_RESET: Kind.OUT_OF_RANGE,
    KafkaError.OFFSET_OUT_OF_RANGE: Kind.OUT_OF_RANGE,
    # Routine at every deploy (B03). 110 is KIP-848's word for 25.
    KafkaError.ILLEGAL_GENERATION: Kind.REBALANCE,
    KafkaError.UNKNOWN_MEMBER_ID: Kind.REBALANCE,
    KafkaError.FENCED_MEMBER_EPOCH: Kind.REBALANCE,
    KafkaError._ASSIGNMENT_LOST: Kind.REBALANCE,
    KafkaError._MAX_POLL_EXCEEDED: Kind.REBALANCE,
    KafkaError._STATE: Kind.REBALANCE,
    KafkaError._NO_OFFSET: Kind.REBALANCE,
    # A member in good standing gets these in the middle of a rebalance, keeps its partitions, and is told to ask again.
    KafkaError.REBALANCE_IN_PROGRESS: Kind.RETRY,
    KafkaError.STALE_MEMBER_EPOCH: Kind.RETRY,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: Kind.RETRY,
    KafkaError.COORDINATOR_NOT_AVAILABLE: Kind.RETRY,
    KafkaError.NOT_COORDINATOR: Kind.RETRY,
    KafkaError.UNSTABLE_OFFSET_COMMIT: Kind.RETRY,
    KafkaError.REQUEST_TIMED_OUT: Kind.RETRY,
    KafkaError.NETWORK_EXCEPTION: Kind.RETRY,
    KafkaError.LEADER_NOT_AVAILABLE: Kind.RETRY,
    KafkaError.NOT_LEADER_FOR_PARTITION: Kind.RETRY,
    KafkaError._TIMED_OUT: Kind.RETRY,
    KafkaError._TIMED_OUT_QUEUE: Kind.RETRY,
    KafkaError._WAIT_COORD: Kind.RETRY,
    KafkaError._PREV_IN_PROGRESS: Kind.RETRY,
    KafkaError.UNKNOWN_TOPIC_OR_PART: Kind.TOPIC,
    KafkaError.UNKNOWN_TOPIC_ID: Kind.TOPIC,
    KafkaError.TOPIC_EXCEPTION: Kind.TOPIC,
    KafkaError._UNKNOWN_TOPIC: Kind.TOPIC,
    KafkaError._UNKNOWN_PARTITION: Kind.TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: Kind.AUTHORISATION,
    KafkaError.GROUP_AUTHORIZATION_FAILED: Kind.AUTHORISATION,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: Kind.AUTHORISATION,
    KafkaError._FATAL: Kind.FATAL,
    KafkaError._FENCED: Kind.FATAL,
    KafkaError.FENCED_INSTANCE_ID: Kind.FATAL,
    KafkaError.UNRELEASED_INSTANCE_ID: Kind.FATAL,
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: Kind.FATAL,
    KafkaError.UNSUPPORTED_ASSIGNOR: Kind.FATAL,
    KafkaError.UNSUPPORTED_VERSION: Kind.FATAL,
    KafkaError.INVALID_GROUP_ID: Kind.FATAL,
    KafkaError.GROUP_MAX_SIZE_REACHED: Kind.FATAL,
    KafkaError._CRIT_SYS_RESOURCE: Kind.FATAL,
}

FIXES: Final[Mapping[int, str]] = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant the principal Read on the group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "grant the principal what the broker's log says it lacks on the cluster",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant the principal Read on the topic",
    KafkaError.FENCED_INSTANCE_ID: "two members use one group.instance.id: give each replica one of its own",
    KafkaError.UNRELEASED_INSTANCE_ID: "the member that held this group.instance.id has not left: stop it, or wait",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: (
        "scale the group to zero, then start it again: members with different strategies or protocols cannot mix"
    ),
    KafkaError.UNSUPPORTED_VERSION: "the broker has no KIP-848 groups (Kafka 4.0 has): set the classic group protocol",
    KafkaError.UNSUPPORTED_ASSIGNOR: "take the assignor out, or configure it on the brokers",
    KafkaError.GROUP_MAX_SIZE_REACHED: "run fewer replicas, or raise the brokers' group.max.size",
}

_SEND_ANSWERS: Final[Mapping[int, SendAnswer]] = {
    KafkaError.NO_ERROR: SendAnswer.SENT,
    KafkaError.MSG_SIZE_TOO_LARGE: SendAnswer.TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: SendAnswer.TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE: SendAnswer.TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: SendAnswer.FORBIDDEN,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: SendAnswer.FORBIDDEN,
    KafkaError.UNKNOWN_TOPIC_OR_PART: SendAnswer.UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_TOPIC: SendAnswer.UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION: SendAnswer.UNKNOWN_TOPIC,
    KafkaError.TOPIC_EXCEPTION: SendAnswer.UNKNOWN_TOPIC,
    KafkaError.INVALID_RECORD: SendAnswer.REFUSED,
    KafkaError.POLICY_VIOLATION: SendAnswer.REFUSED,
    KafkaError.INVALID_TIMESTAMP: SendAnswer.REFUSED,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: SendAnswer.REFUSED,
    KafkaError._INVALID_ARG: SendAnswer.REFUSED,
}


def kind_of(error: KafkaError) -> Kind:
    """What to do about `error`; the fatal flag that librdkafka sets wins over the table."""
    return Kind.FATAL if error.fatal() else KINDS.get(error.code(), Kind.RETRY)


def fix_of(error: KafkaError) -> str:
    """What a person does about a fatal error."""
    return FIXES.get(error.code(), f"look up {error.name()} in the broker's log, then start the process again")


def commit_answer(error: KafkaError | None) -> CommitAnswer:
    """What a commit's error says about our ownership of the partition."""
    match None if error is None else kind_of(error):
        case None | Kind.IGNORE:
            return CommitAnswer.ACCEPTED
        case Kind.REBALANCE | Kind.FATAL:
            return CommitAnswer.REFUSED
        case Kind.AUTHORISATION:
            return CommitAnswer.FORBIDDEN
        case _:
            return CommitAnswer.UNREACHABLE


def send_answer(error: KafkaError | None) -> SendAnswer:
    """What a delivery report says about the record; what is not listed may succeed later."""
    return SendAnswer.SENT if error is None else _SEND_ANSWERS.get(error.code(), SendAnswer.UNREACHABLE)
