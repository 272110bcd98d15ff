"""Wrong configuration ends with 78, every problem at once, each with its key and its fix, and nothing was started."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli import tidegate

APP = """
from tidegate.consumers.app import App
from tidegate.consumers.codecs.json import Json
from tidegate.inbox.scope import header

app = App("shop", owner="")
orders = app.consumer("Shop Orders", topics=["shop.orders"], codec=Json(), event_id=header("id"))
"""


def test_settings_declarations_and_app_are_judged_together(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    ended = tidegate(
        "run",
        "--app",
        "shop:app",
        "--consumer",
        "Shop Orders",
        cwd=tmp_path,
        variables={
            "TIDEGATE_DATABASE_URL": "mysql://root:hidden@h/d",
            "TIDEGATE_WORKER_WINDOW_RECORDS_MAX": "1.2e+06",
            "TIDEGATE_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        },
    )
    assert ended.code == 78
    for key in (
        "app 'shop'",
        "consumer 'Shop Orders'",
        "database.url",
        "worker.window_records_max",
        "TIDEGATE_KAFKA_BOOTSTRAP",
        "kafka.bootstrap_servers",
    ):
        assert f"{key}: " in ended.err
    assert ended.err.count(" Fix: ") >= 6
    assert "hidden" not in ended.err
    assert "Traceback" not in ended.err


def test_auto_commit_never_starts(tmp_path: Path) -> None:
    """A user's enable.auto.commit is refused before anything is read, so no record is marked done by a timer.

    Case: B06
    Parts: real (process, settings)
    Red when: layers.py `_client_problems` leaves out `config.problems(options)`
    """
    (tmp_path / "shop.py").write_text(APP.replace('owner=""', 'owner="x"').replace("Shop Orders", "shop-orders"))
    ended = tidegate(
        "run",
        "--app",
        "shop:app",
        cwd=tmp_path,
        variables={
            "TIDEGATE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "TIDEGATE_KAFKA_CLIENT_ENABLE_AUTO_COMMIT": "true",
            "TIDEGATE_KAFKA_CLIENT_AUTO_COMMIT_INTERVAL_MS": "100",
        },
    )
    assert ended.code == 78
    assert "kafka.client.enable.auto.commit" in ended.err
    assert "kafka.client.auto.commit.interval.ms" in ended.err
    assert "only after its record is handled" in ended.err


def test_properties_that_the_client_does_not_know_are_all_named(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.replace('owner=""', 'owner="x"').replace("Shop Orders", "shop-orders"))
    ended = tidegate(
        "run",
        "--app",
        "shop:app",
        cwd=tmp_path,
        variables={
            "TIDEGATE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "TIDEGATE_KAFKA_CLIENT_NO_SUCH_PROPERTY": "1",
            "TIDEGATE_KAFKA_CLIENT_SECURITY_PROTOCOL": "nonsense",
            "TIDEGATE_KAFKA_CLIENT_FETCH_WAIT_MAX_MS": "many",
        },
    )
    assert ended.code == 78
    for name in ("no.such.property", "security.protocol", "fetch.wait.max.ms"):
        assert f"kafka.client.{name}: " in ended.err
    assert "Traceback" not in ended.err


def test_config_shows_each_value_with_its_source_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('[log]\nlevel = "debug"\n')
    ended = tidegate(
        "config", "--config", "t.toml", cwd=tmp_path, variables={"TIDEGATE_DATABASE_URL": "postgresql://u:hidden@h/d"}
    )
    assert ended.code == 0
    assert "postgresql://u:********@h/d" in ended.out
    assert "environment TIDEGATE_DATABASE_URL" in ended.out
    assert "file t.toml" in ended.out
    assert "hidden" not in ended.out


def test_the_command_line_itself_is_checked() -> None:
    assert tidegate("run", "--no-such-option").code == 2
    assert "Consume until SIGTERM" in tidegate("--help").out
