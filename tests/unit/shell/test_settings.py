"""Settings: four sources in one order, strict values, every problem at once, no secret in sight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidegate.consumers import config_report, layers
from tidegate.consumers.layers import Effective, load
from tidegate.inbox.errors import ConfigurationError, Problem


def problems_of(
    environ: dict[str, str],
    file: Path | None = None,
    code: Mapping[str, Any] | None = None,
    needs: tuple[str, ...] = (),
) -> dict[str, Problem]:
    with pytest.raises(ConfigurationError) as caught:
        load(environ, file, code, needs)
    return {problem.key: problem for problem in caught.value.problems}


def value(effective: Effective, key: str) -> tuple[str, str]:
    return next((row.value, row.source) for row in config_report.rows(effective) if row.key == key)


def test_the_environment_wins_over_the_file_over_code_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text("[worker]\nwindow_records_max = 2\ncommit_interval_s = 2.5\n")
    code = {"worker": {"window_records_max": 3, "commit_interval_s": 3.5, "close_budget_s": 3}}
    effective = load({"TIDEGATE_WORKER_WINDOW_RECORDS_MAX": "1"}, file, code)
    assert value(effective, "worker.window_records_max") == ("1", "environment TIDEGATE_WORKER_WINDOW_RECORDS_MAX")
    assert value(effective, "worker.commit_interval_s") == ("2.5", f"file {file}")
    assert value(effective, "worker.close_budget_s") == ("3.0", "code")
    assert value(effective, "worker.drain_budget_s") == ("20.0", "default")


def test_the_file_may_be_named_by_the_environment_and_the_option_wins(tmp_path: Path) -> None:
    named, chosen = tmp_path / "named.toml", tmp_path / "chosen.toml"
    named.write_text("[worker]\nwindow_records_max = 1\n")
    chosen.write_text("[worker]\nwindow_records_max = 2\n")
    assert load({"TIDEGATE_CONFIG": str(named)}).settings.worker.window_records_max == 1
    assert load({"TIDEGATE_CONFIG": str(named)}, chosen).settings.worker.window_records_max == 2


def test_unknown_keys_are_errors_in_every_source(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text("[worker]\nwindow_records_maximum = 1\n[workers]\nx = 1\n")
    found = problems_of({"TIDEGATE_DATABSE_URL": "x"}, file=file, code={"log": {"colour": "red"}})
    assert set(found) == {"TIDEGATE_DATABSE_URL", "worker.window_records_maximum", "workers.x", "log.colour"}
    assert "TIDEGATE_DATABASE_URL" in found["TIDEGATE_DATABSE_URL"].fix
    assert "worker.window_records_max" in found["worker.window_records_maximum"].fix


def test_other_peoples_variables_are_left_alone() -> None:
    load(
        {
            "TIDEGATE_TEST_KAFKA": "127.0.0.1:1",
            "TIDEGATE_SERVICE_HOST": "10.0.0.7",  # Kubernetes, beside a Service named tidegate
            "TIDEGATE_WEB_PORT_8080_TCP_ADDR": "10.0.0.7",
            "TIDEGATE_PORT": "tcp://10.0.0.7:8080",
            "PATH": "/bin",
        }
    )


def test_every_problem_is_found_at_once() -> None:
    found = problems_of(
        {
            "TIDEGATE_LOG_LEVEL": "loud",
            "TIDEGATE_HEALTH_PORT": "70000",
            "TIDEGATE_DATABASE_URL": "mysql://u:hidden@h/d",
            "TIDEGATE_REGISTRY_URL": "http://a,/schemas",
            "TIDEGATE_DATABASE_SCHEMA": "No Way",
            "TIDEGATE_WORKER_DRAIN_BUDGET_S": "nan",
            "TIDEGATE_NOPE": "1",
        },
        needs=("kafka.bootstrap_servers",),
    )
    assert set(found) == {
        "log.level",
        "health.port",
        "database.url",
        "registry.url",
        "database.schema",
        "worker.drain_budget_s",
        "TIDEGATE_NOPE",
        "kafka.bootstrap_servers",
    }
    assert all(problem.what and problem.fix for problem in found.values())
    assert "hidden" not in "".join(str(problem) for problem in found.values())


@pytest.mark.parametrize("written", ["1.2e+06", "1e3", "1000.0", "1_000", "yes", "", "0x10", "12 000"])
def test_a_whole_number_is_digits_and_nothing_else(written: str) -> None:
    """What a chart made of 1200000 is refused with the key's name, never guessed at.

    Case: B59
    Parts: real (environment parser)
    Red when: settings.py `_whole` returns int(float(value)) where it refuses what is not digits
    """
    found = problems_of({"TIDEGATE_WORKER_WINDOW_RECORDS_MAX": written})
    assert set(found) == {"worker.window_records_max"}
    assert "whole number" in found["worker.window_records_max"].what
    assert "TIDEGATE_WORKER_WINDOW_RECORDS_MAX" in found["worker.window_records_max"].what


@pytest.mark.parametrize("name", ["MAX_POLL_INTERVAL_MS", "QUEUED_MAX_MESSAGES_KBYTES", "FETCH_MAX_BYTES"])
def test_an_exponent_in_a_client_property_is_refused_with_its_name(name: str) -> None:
    """A number of librdkafka's that went through YAML is refused by us, with the key, before the client sees it.

    Case: B59
    Parts: real (environment parser)
    Red when: layers.py `load` leaves out `_client_problems`
    """
    found = problems_of({f"TIDEGATE_KAFKA_CLIENT_{name}": "1.048576e+06"})
    assert set(found) == {"kafka.client." + name.lower().replace("_", ".")}


@pytest.mark.parametrize(
    "written", ["enable.auto.commit", "ENABLE_AUTO_COMMIT", "Enable-Auto.Commit", "auto.commit.enable"]
)
@pytest.mark.parametrize("source", ["environment", "file", "code"])
def test_auto_commit_is_refused_in_every_spelling_and_source(tmp_path: Path, written: str, source: str) -> None:
    """Nothing may mark a record done before its handler is: the setting is refused wherever and however it is written.

    Case: B06
    Parts: real (environment, file and code parser)
    Red when: layers.py `_client_problems` leaves out `config.problems(options)`
    """
    if source == "environment":
        name = written.replace(".", "_").replace("-", "_").upper()
        found = problems_of({f"TIDEGATE_KAFKA_CLIENT_{name}": "true"})
    elif source == "file":
        file = tmp_path / "tidegate.toml"
        file.write_text(f'[kafka.client]\n"{written}" = true\n')
        found = problems_of({}, file=file)
    else:
        found = problems_of({}, code={"kafka": {"client": {written: True}}})
    (problem,) = found.values()
    assert "auto" in problem.key
    assert "only after its record is handled" in problem.what
    assert source in problem.what
    assert problem.fix == "take it out"


def test_every_refused_property_is_told_at_once() -> None:
    names = ["ENABLE_AUTO_COMMIT", "AUTO_OFFSET_RESET", "ISOLATION_LEVEL", "GROUP_ID", "SESSION_TIMEOUT_MS"]
    assert len(problems_of({f"TIDEGATE_KAFKA_CLIENT_{name}": "x" for name in names})) == len(names)


def test_one_property_in_two_spellings_is_a_problem() -> None:
    found = problems_of({}, code={"kafka": {"client": {"sasl.username": "a", "SASL_USERNAME": "b"}}})
    assert "twice" in str(found)


def test_what_the_rooms_are_made_from_follows_from_the_settings() -> None:
    settings = load(
        {
            "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": "k:9092",
            "TIDEGATE_KAFKA_GROUP_PROTOCOL": "classic",
            "TIDEGATE_KAFKA_CLIENT_SESSION_TIMEOUT_MS": "6000",
            "TIDEGATE_REGISTRY_URL": "http://a,http://b",
            "TIDEGATE_REGISTRY_USER": "u",
            "TIDEGATE_REGISTRY_PASSWORD": "p:w",
            "TIDEGATE_REGISTRY_TIMEOUT_S": "1.5",
            "TIDEGATE_REGISTRY_MISSING_TRIES": "7",
            "TIDEGATE_REGISTRY_MISSING_GRACE_S": "8",
            "TIDEGATE_REGISTRY_MISSING_TTL_S": "9",
            "TIDEGATE_WORKER_WINDOW_RECORDS_MAX": "10",
            "TIDEGATE_DATABASE_POOL_MAX": "3",
        }
    ).settings
    options = settings.client_options("billing", ["orders"])
    assert (options.bootstrap, options.group, options.topics) == ("k:9092", "billing", ("orders",))
    assert (options.protocol, options.kafka["session.timeout.ms"], options.instance_id) == ("classic", "6000", None)
    assert (settings.engine_policy().window_records_max, settings.engine_policy().window_records_low) == (10, 5)
    codec = settings.codec_settings()
    assert (codec.registry, codec.registry_client) == (("http://a", "http://b"), {"basic.auth.user.info": "u:p:w"})
    assert (codec.timeout_s, codec.missing_tries, codec.missing_grace_s, codec.missing_ttl_s) == (1.5, 7, 8.0, 9.0)
    assert settings.database.pools().pool_max == 3


def test_text_that_looks_like_a_number_stays_text() -> None:
    """Digits, exponents, yes and leading zeros are kept letter by letter where text is wanted.

    Case: B59
    Parts: real (environment parser)
    Red when: layers.py `_client_value` parses its value as JSON before it makes text of it
    """
    effective = load(
        {
            "TIDEGATE_KAFKA_CLIENT_MAX_POLL_INTERVAL_MS": "1200000",
            "TIDEGATE_KAFKA_CLIENT_QUEUED_MAX_MESSAGES_KBYTES": "1048576",
            "TIDEGATE_KAFKA_CLIENT_CLIENT_RACK": "12e3",
            "TIDEGATE_KAFKA_CLIENT_SASL_USERNAME": "yes",
            "TIDEGATE_REGISTRY_USER": "007",
        }
    )
    client = effective.settings.kafka.client
    assert client["max.poll.interval.ms"] == "1200000"
    assert client["queued.max.messages.kbytes"] == "1048576"
    assert (client["client.rack"], client["sasl.username"]) == ("12e3", "yes")
    assert effective.settings.registry.user == "007"


@pytest.mark.parametrize("written", ["yes", "1", "True", "on", "null", ""])
def test_a_switch_is_true_or_false_and_nothing_else(written: str) -> None:
    found = problems_of({"TIDEGATE_LOG_EXCEPTION_MESSAGES": written})
    assert set(found) == {"log.exception_messages"}


def test_values_from_the_file_are_as_strict(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text('[worker]\nwindow_records_max = 1.0\n[database]\nurl = 5\n[log]\nexception_messages = "maybe"\n')
    assert set(problems_of({}, file=file)) == {"worker.window_records_max", "database.url", "log.exception_messages"}


@pytest.mark.parametrize(
    ("content", "says"), [(None, "cannot be read"), (b"\xff\xfe", "UTF-8"), (b"[worker\n", "TOML")]
)
def test_a_file_that_is_none_is_one_problem(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "tidegate.toml"
    if content is not None:
        file.write_bytes(content)
    assert says in problems_of({}, file=file)["config"].what


def test_a_secret_may_be_a_file_in_every_source(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    from_environment = load({"TIDEGATE_DATABASE_PASSWORD_FILE": str(secret)})
    assert from_environment.settings.database.password.get_secret_value() == "s3cret"
    from_code = load({}, code={"kafka": {"client": {"sasl.password.file": str(secret)}}})
    assert from_code.settings.kafka.client["sasl.password"] == "s3cret"
    from_client_variable = load({"TIDEGATE_KAFKA_CLIENT_SASL_PASSWORD_FILE": str(secret)})
    assert from_client_variable.settings.kafka.client["sasl.password"] == "s3cret"


def test_a_secret_given_twice_or_missing_is_a_problem(tmp_path: Path) -> None:
    found = problems_of(
        {
            "TIDEGATE_DATABASE_PASSWORD_FILE": str(tmp_path / "none"),
            "TIDEGATE_REGISTRY_PASSWORD": "one",
            "TIDEGATE_REGISTRY_PASSWORD_FILE": str(tmp_path / "other"),
        }
    )
    assert "cannot be read" in found["database.password"].what
    assert "twice" in found["registry.password"].what


def test_no_secret_is_shown() -> None:
    effective = load(
        {
            "TIDEGATE_DATABASE_URL": "postgresql://u:hidden1@h:5432/d?password=hidden2",
            "TIDEGATE_DATABASE_PASSWORD": "hidden3",
            "TIDEGATE_REGISTRY_PASSWORD": "hidden4",
            "TIDEGATE_KAFKA_CLIENT_SASL_PASSWORD": "hidden5",
            "TIDEGATE_KAFKA_CLIENT_SSL_KEY_PEM": "hidden6",
            "TIDEGATE_KAFKA_CLIENT_SASL_OAUTHBEARER_CLIENT_SECRET": "hidden7",
        }
    )
    told = "".join(row.value for row in config_report.rows(effective)) + repr(effective.settings)
    assert "hidden" not in told
    assert value(effective, "database.url")[0] == "postgresql://u:********@h:5432/d?password=********"


def test_a_password_inside_a_registry_address_is_refused_and_not_shown() -> None:
    found = problems_of({"TIDEGATE_REGISTRY_URL": "http://u:hidden@registry:8081"})
    assert "registry.password" in found["registry.url"].what
    assert "hidden" not in str(found["registry.url"])


@pytest.mark.parametrize(
    ("written", "dsn"),
    [
        ("postgres://u@h/d?sslmode=require", "postgresql://u@h/d?sslmode=require&password=p%40ss%2Fword"),
        ("postgresql+asyncpg://u@h1:1,h2:2/d", "postgresql://u@h1:1,h2:2/d?password=p%40ss%2Fword"),
        ("postgresql:///d?host=/run/pg", "postgresql:///d?host=/run/pg&password=p%40ss%2Fword"),
    ],
)
def test_the_database_address_is_what_the_driver_wants(written: str, dsn: str) -> None:
    environ = {"TIDEGATE_DATABASE_URL": written, "TIDEGATE_DATABASE_PASSWORD": "p@ss/word"}
    assert load(environ).settings.database.dsn() == dsn


@pytest.mark.parametrize("written", ["h:5432/d", "postgresql://h:5432", "postgresql://h/", "mysql://h/d", "postgresql"])
def test_what_is_no_database_address_is_refused(written: str) -> None:
    assert set(problems_of({"TIDEGATE_DATABASE_URL": written})) == {"database.url"}


def test_dotted_keys_of_a_file_need_no_quotes(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text(
        '[kafka.client]\nsasl.username = "shop"\n"security.protocol" = "SASL_SSL"\n'
        '"Enable_SSL-certificate.verification" = true\n'
    )
    client = load({}, file).settings.kafka.client
    assert client == {
        "sasl.username": "shop",
        "security.protocol": "SASL_SSL",
        "enable.ssl.certificate.verification": "true",
    }


def test_every_key_has_a_variable_of_its_own_that_leads_back_to_it() -> None:
    for key in layers.fields():
        assert layers.variable(key).startswith("TIDEGATE_")
    assert len({layers.variable(key) for key in layers.fields()}) == len(layers.fields())
    assert not {layers.variable(key) for key in layers.fields()} & layers.NOT_SETTINGS


def test_the_reference_is_current() -> None:
    assert Path("docs/settings.md").read_text(encoding="utf-8") == config_report.reference()
