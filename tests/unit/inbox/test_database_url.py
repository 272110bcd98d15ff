"""What may be said of a database's URL, and which names a schema may have."""

from __future__ import annotations

import pytest

from tidegate.inbox.database import Database, redact_dsn
from tidegate.inbox.errors import ConfigurationError
from tidegate.inbox.tables import tables


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db:5432/shop", "postgresql://ann:***@db:5432/shop"),
        ("postgresql://ann:s@cr/et@db/shop", "postgresql://ann:***@db/shop"),
        ("postgresql://ann@db/shop", "postgresql://ann@db/shop"),
        ("postgresql://db/shop?user=ann&password=secret&x=1", "postgresql://db/shop?user=ann&password=***&x=1"),
        ("postgresql://db/shop?sslpassword=secret", "postgresql://db/shop?sslpassword=***"),
        ("host=db password='se cret' user=ann", "host=db password=*** user=ann"),
        ("postgresql:///shop?host=/run/pg", "postgresql:///shop?host=/run/pg"),
    ],
)
def test_no_password_is_ever_shown(url: str, shown: str) -> None:
    assert redact_dsn(url) == shown
    assert repr(Database(url)) == f"Database({shown})"


@pytest.mark.parametrize("name", ["", "Shop", "1a", "pg_x", "a-b", 'a"b', "a.b", "a; drop", "ä", "user", "x" * 49])
def test_a_schema_that_would_need_quotes_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="Fix:"):
        tables(name)


def test_any_other_name_is_one() -> None:
    t = tables("tide_gate2")
    assert t.fence.fullname == "tide_gate2.fence"
    assert t.sql("SELECT FROM {fence}, {schema}.x").text == "SELECT FROM tide_gate2.fence, tide_gate2.x"
    assert t.generation_lock > 0
