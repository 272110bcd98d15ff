"""Makes docs/diagrams.md from the tables in the code: `python -m tests.support.diagrams > docs/diagrams.md`."""

from __future__ import annotations

import sys

from tidegate.consumers.engine.partition import lifecycle_diagram
from tidegate.inbox import effect_states
from tidegate.inbox.states import diagram

PAGE = """\
# Diagrams

<!-- Made by `python -m tests.support.diagrams`; edit the tables in the code instead. -->

## A partition's life in the engine

From its assignment to its end, under one epoch. The table stands in `consumers/engine/partition.py`.

```mermaid
{lifecycle}
```

## A failure row

What is done to it, and where that leads; `[*]` is before the first failure, and after success. The table stands in
`inbox/states.py`; the database refuses a row that is in none of these states.

```mermaid
{failures}
```

## A call to the outside

Its row in the ledger of effects; `[*]` is before the first call. The table stands in `inbox/effect_states.py`.

```mermaid
{effects}
```
"""


def made() -> str:
    """The page."""
    return PAGE.format(
        lifecycle=lifecycle_diagram().strip(), failures=diagram().strip(), effects=effect_states.diagram()
    )


if __name__ == "__main__":
    sys.stdout.write(made())
