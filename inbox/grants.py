"""The rights of an application's role: everything that a worker and the command line do, and no change of the audit.

No IO; time is an argument. `tidegate migrate` runs as the schema's owner; workers should run as a role of their own,
which can add lines to the audit and seals to its chain, and neither change nor remove one. A trigger refuses that to
everybody; these rights refuse to switch the trigger off too, because only a table's owner can.
"""

from __future__ import annotations

import re

from .errors import ConfigurationError
from .tables import VERSION_TABLE, Tables


def statements(t: Tables, role: str) -> str:
    """SQL that gives `role` its rights; to be run again after each migration, by the schema's owner.

    Raises:
        ConfigurationError: that is no role's name here.
    """
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}", role) is None:
        raise ConfigurationError.of(
            "--grants", f"{role!r} is no role's name here", "use letters, digits and _ $ -, no digit first"
        )
    schema, to = t.schema, f'"{role}"'
    added = ", ".join(table.fullname for table in (t.audit, t.audit_seal))
    return f"""\
GRANT USAGE ON SCHEMA {schema} TO {to};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {to};
REVOKE UPDATE, DELETE, TRUNCATE ON {added} FROM {to};
REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON {schema}.{VERSION_TABLE} FROM {to};
"""
