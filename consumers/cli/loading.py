"""Finds the App that `--app module:attribute` names. Each way in which it can be wrong has a message of its own."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, final

from ...inbox.errors import ConfigurationError
from ..app import App, Consumer

KEY: Final = "--app"
SHAPE: Final = "write it as package.module:app"


def load_app(path: str | None) -> App:
    """Import the module and return its App.

    The working directory is searched first, as `python -m` does it. Raises ConfigurationError for everything that can
    be wrong, what the module itself raises included; problems that the app declares as such are kept as they are.
    """
    module_name, attribute = _parts(path)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(module_name)
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ConfigurationError.of(KEY, f"{module_name} has no {attribute!r}", _apps_hint(module))
        found = getattr(found, name)
    if isinstance(found, App):
        return found
    raise ConfigurationError.of(KEY, f"{path} is {_description(found)}, not an App", _apps_hint(module))


def _parts(path: str | None) -> tuple[str, str]:
    if not path:
        raise ConfigurationError.of(KEY, "it is not given", f"{SHAPE}, or set TIDEGATE_APP")
    module_name, colon, attribute = path.partition(":")
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigurationError.of(KEY, f"{module_name} is a file", f"name the module: {dotted}:{attribute or 'app'}")
    names = (*module_name.split("."), *attribute.split("."))
    if not colon or not all(name.isidentifier() for name in names):
        raise ConfigurationError.of(KEY, f"{path!r} does not name a module and an attribute", SHAPE)
    return module_name, attribute


def _imported(module_name: str) -> ModuleType:
    attempt = _Attempt(lambda: importlib.import_module(module_name))
    if attempt.error is None:
        assert attempt.module is not None
        return attempt.module
    error = attempt.error
    if isinstance(error, ConfigurationError):
        raise error
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
        raise ConfigurationError.of(
            KEY,
            f"there is no module {error.name!r} here ({Path.cwd()}) or installed",
            "correct the name, or start from the directory that holds it",
        )
    where, what = _place(error, module_name), _said(error)
    raise ConfigurationError.of(KEY, f"importing {module_name} failed at {where}: {what}", "correct that line")


@final
class _Attempt:
    """One call of code that is not ours, and how it ended: any error of an application's module is a finding here.

    An exit stack would swallow what must pass: SystemExit, KeyboardInterrupt and the like do pass.
    """

    def __init__(self, call: Callable[[], ModuleType]) -> None:
        self.module: ModuleType | None = None
        self.error: Exception | None = None
        with self:
            self.module = call()

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, error: BaseException | None, _trace: TracebackType | None) -> bool:
        self.error = error if isinstance(error, Exception) else None
        return self.error is not None


def _place(error: Exception, module_name: str) -> str:
    """The innermost line of the application's own code: that is where it can be corrected."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    ours = str(Path(__file__).parent)
    own = [frame for frame in frames if not frame.filename.startswith((*libraries, ours))]
    last = (own or frames)[-1] if frames else None
    return f"{last.filename}:{last.lineno}" if last else module_name


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _description(found: object) -> str:
    if isinstance(found, Consumer):
        return f"the consumer {found.name!r}"
    if isinstance(found, type):
        return f"the class {found.__name__}"
    if callable(found):
        return f"the function {getattr(found, '__name__', '?')}"
    return f"of type {type(found).__name__}"


def _apps_hint(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    if apps:
        return "use " + " or ".join(f"{module.__name__}:{name}" for name in apps)
    return f"make one at the module's top level: app = App(...) in {module.__file__ or module.__name__}"
