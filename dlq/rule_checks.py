"""What is wrong with a set of rules, found before the first event. No IO; a look at values.

A rule is code that runs when something fails already: what can be known to be wrong is refused at start, with the
handler, the rule and the fix. What may be meant so is a warning of `tidegate check`.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from asyncio.exceptions import CancelledError
from collections.abc import Iterator, Sequence
from typing import Final

from ..inbox.errors import EffectPending, EffectUnknown, FatalError, OwnershipLost, Problem
from ..inbox.outcome import Reason
from .policy import FailurePolicy, Rule, Then
from .retry import RetryPolicy
from .rule_match import is_exception_class, loaded, named, shown, standing_at, takes

MADE_BY: Final = "retry_on, skip_on, fail_on, review_on or stop_on"

_ABSOLUTE: Final = (OwnershipLost, FatalError, EffectPending, EffectUnknown)
"""What no rule is asked about."""

_NO_FAILURE: Final = (BaseException, KeyboardInterrupt, GeneratorExit, CancelledError)
"""A stop from outside, which is nobody's failure: rules that swallow it would make a worker that cannot be stopped."""

_CATCH_ALL: Final = (Exception, OSError)
"""What a lost connection of the database raises too."""


def policy_problems(key: str, policy: FailurePolicy) -> list[Problem]:
    """What is wrong with a handler's policy; `key` names the handler."""
    return retry_problems(key, policy.retry) + rule_problems(key, policy.own_rules)


def retry_problems(key: str, retry: object) -> list[Problem]:
    """A retry without end: `RetryPolicy` refuses one when it is made, so this finds what goes round it."""
    if not isinstance(retry, RetryPolicy):
        return [Problem(key, f"retry= is a {type(retry).__name__}", "give a RetryPolicy: it says where trying ends")]
    return [Problem(f"{key}, {problem.key}", problem.what, problem.fix) for problem in retry.problems()]


def rule_problems(key: str, rules: Sequence[object]) -> list[Problem]:
    """What is wrong with rules that are asked in this order."""
    problems: list[Problem] = []
    before: list[tuple[int, Rule]] = []
    for number, rule in enumerate(rules, 1):
        if not isinstance(rule, Rule):
            what = f"rule {number} is a {type(rule).__name__}, not a rule"
            problems.append(Problem(key, what, f"make it with {MADE_BY}"))
            continue
        found = list(_wrong(rule)) or list(_unreachable(rule, before))
        problems += [Problem(f"{key}, rule {number}", what, fix) for what, fix in found]
        if not found:
            before.append((number, rule))
    return problems


Wrong = tuple[str, str]
"""(what is wrong, the fix)."""


def _wrong(rule: Rule) -> Iterator[Wrong]:
    """What is wrong with one rule by itself."""
    yield from _of_class(rule.on)
    if not _is_text(rule.because):
        yield "it has no reason", 'say why, for whoever reads the letter: because="the bank is closed at night"'
    for option, function in (("when", rule.when), ("after_s", rule.after_s)):
        if function is not None:
            yield from _of_function(option, function)
    if rule.reason not in tuple(Reason):
        yield f"{rule.reason!r} is no reason of a dead letter", f"take one of {', '.join(Reason)}"


def _of_class(on: object) -> Iterator[Wrong]:
    """What is wrong with the class, or the name, that a rule is on."""
    if isinstance(on, str) and not _is_full(on):
        yield f"{on!r} is no full name", 'write it as "module.Class", or name the class itself'
    found = standing_at(on) if isinstance(on, str) else on
    if is_exception_class(found):
        yield from _of_known(found)
    elif found is not None or on is None:
        what = on if isinstance(on, str) else shown(on)
        yield f"{what} is no exception class", "name one exception class, or its full name as a text"


def _of_known(cls: type[BaseException]) -> Iterator[Wrong]:
    if cls in _NO_FAILURE:
        yield f"{cls.__name__} also is how a worker is stopped", "name what fails: Exception, or a class below it"
    elif issubclass(cls, _ABSOLUTE):
        yield f"no rule is asked about {cls.__name__}: what it leads to is certain", "take the rule out"


def _is_full(name: str) -> bool:
    """`module.Class`; a builtin may go without its module."""
    parts = name.split(".")
    return all(part.isidentifier() for part in parts) and (len(parts) > 1 or hasattr(builtins, name))


def _of_function(option: str, function: object) -> Iterator[Wrong]:
    if not callable(function):
        yield f"{option}= is a {type(function).__name__}", f"give a function that takes the exception: {option}=..."
    elif inspect.iscoroutinefunction(function):
        yield f"{option}= is an async def", "give a def: it only looks at the exception, without any IO"


def _unreachable(rule: Rule, before: Sequence[tuple[int, Rule]]) -> Iterator[Wrong]:
    for number, earlier in before:
        if earlier.when is None and _covers(earlier.on, rule.on):
            yield (
                f"{named(rule.on)} never gets here: rule {number} takes every {named(earlier.on)}",
                f"put it before rule {number}, give that one a when=, or take one of them out",
            )
            return


def _covers(earlier: type[BaseException] | str, later: type[BaseException] | str) -> bool:
    """Whether whatever `later` takes is taken by `earlier`, as far as can be known without importing anything."""
    if earlier == later:
        return True
    cls = loaded(later) if isinstance(later, str) else later
    return cls is not None and takes(earlier, cls)


# ----------------------------------------------------------------------------------------------------------- warnings


def rule_warnings(key: str, rules: Sequence[Rule]) -> list[str]:
    """What is allowed, but should be known."""
    return [f"{key}, rule {number}: {told}" for number, rule in enumerate(rules, 1) for told in _doubtful(rule)]


def _doubtful(rule: Rule) -> Iterator[str]:
    cls = loaded(rule.on) if isinstance(rule.on, str) else rule.on
    if rule.then in (Then.SKIP, Then.FAIL) and rule.when is None and cls in _CATCH_ALL:
        yield f"{rule.then} on {named(rule.on)} also takes a lost connection of the database: give it a when="
    if isinstance(rule.on, str) and _is_missing(rule.on):
        module, _, name = rule.on.rpartition(".")
        yield f"the module {module} has no {name}: nothing is ever taken by this rule, if that is a typing error"


def _is_missing(name: str) -> bool:
    module_name, _, attribute = name.rpartition(".")
    module = sys.modules.get(module_name)
    return module is not None and attribute not in vars(module) and "__getattr__" not in vars(module)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
