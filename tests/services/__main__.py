"""`python -m tests.services`: a broker and a database to try things on, until Ctrl-C. Their data goes with them."""

from __future__ import annotations

import contextlib
import signal
import sys

from tests.services import kafka, postgres, require


def main() -> int:
    """Start them, say where they are, wait."""
    if (missing := require.main()) != 0:
        return missing
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # Ctrl-C may have been ignored where we were started
    with kafka.running() as bootstrap, postgres.running() as url, contextlib.suppress(KeyboardInterrupt):
        print(f"export TIDEGATE_KAFKA_BOOTSTRAP_SERVERS={bootstrap} TIDEGATE_DATABASE_URL={url}", flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
