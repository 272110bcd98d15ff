"""Whether a rule's class takes an exception, by the class or by its name. No IO; time is an argument.

A name is looked up along the exception's classes and among the modules that are loaded already: nothing is imported,
because an exception that is raised has its module loaded. So a name may also be the one under which a library shows a
class that lives deeper in it (`aiohttp.ClientError`).
"""

from __future__ import annotations

import builtins
import sys
from typing import TypeGuard

from ..inbox.exception_slots import full_name_of

BUILTINS = "builtins"


def takes(on: type[BaseException] | str, cls: type[BaseException]) -> bool:
    """Whether a rule on `on` takes exceptions of class `cls`.

    >>> takes(OSError, TimeoutError), takes("OSError", TimeoutError), takes("shop.Refused", TimeoutError)
    (True, True, False)
    """
    if not isinstance(on, str):
        return issubclass(cls, on)
    wanted = _full(on)
    if any(full_name_of(base) == wanted for base in cls.__mro__):
        return True
    known = loaded(on)
    return known is not None and issubclass(cls, known)


def loaded(name: str) -> type[BaseException] | None:
    """The exception class that a name stands for, if its module is loaded; None otherwise.

    >>> loaded("json.JSONDecodeError")
    <class 'json.decoder.JSONDecodeError'>
    """
    found = standing_at(name)
    return found if is_exception_class(found) else None


def standing_at(name: str) -> object:
    """Whatever a full name stands for, if its module is loaded; None otherwise."""
    module_name, _, attribute = _full(name).rpartition(".")
    module = sys.modules.get(module_name)
    return None if module is None else vars(module).get(attribute)


def is_exception_class(found: object) -> TypeGuard[type[BaseException]]:
    """Whether it is one.

    >>> is_exception_class(ValueError), is_exception_class(ValueError("x")), is_exception_class(int)
    (True, False, False)
    """
    return isinstance(found, type) and issubclass(found, BaseException)


def shown(found: object) -> str:
    """What somebody gave instead of an exception class.

    >>> shown(int), shown((OSError, KeyError))
    ('int', 'a tuple')
    """
    return found.__name__ if isinstance(found, type) else f"a {type(found).__name__}"


def named(on: type[BaseException] | str) -> str:
    """The class as people write it: builtins without their module.

    >>> named(TimeoutError), named("shop.Refused")
    ('TimeoutError', 'shop.Refused')
    """
    full = on if isinstance(on, str) else full_name_of(on)
    return full.removeprefix(f"{BUILTINS}.")


def _full(name: str) -> str:
    """A builtin may be written without its module, as letters show it."""
    return f"{BUILTINS}.{name}" if "." not in name and hasattr(builtins, name) else name
