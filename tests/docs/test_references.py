"""What pages point to is there: files, headings, settings, metrics, log messages, reasons."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support.pages import Page, page, pages
from tests.tidy.source import product
from tidegate.consumers import metrics, policy_file
from tidegate.consumers.layers import CLIENT_TABLE, NOT_SETTINGS, fields, is_secret, variable
from tidegate.consumers.settings import GROUPS
from tidegate.inbox.outcome import FailureState, Reason

VARIABLES = {variable(key) for key in fields()} | {f"{variable(key)}_FILE" for key in fields() if is_secret(key)}
KEY = re.compile(rf"(?:{'|'.join(GROUPS)})\.[a-z_]+")
EXAMPLES = {"TIDEGATE_WORKER_COMMIT_INTERVALL_S"}
"""A mistake that a page shows on purpose."""

every_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)


@every_page
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links():
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (page.path.parent / file).resolve() if file else page.path
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in Page(target).anchors(), f"{page.name}: {link}"


@every_page
def test_settings_that_are_named_exist(page: Page) -> None:
    for name in re.findall(r"TIDEGATE_[A-Z0-9_]+", page.text):
        ours = name.endswith("_") or name.startswith(("TIDEGATE_TEST_", "TIDEGATE_CRASH_", "TIDEGATE_KAFKA_CLIENT_"))
        assert ours or name in VARIABLES | NOT_SETTINGS | EXAMPLES, f"{page.name}: {name}"
    for code in page.inline_code():
        if KEY.fullmatch(code) and not code.endswith((".md", ".py")):
            assert code in fields(), f"{page.name}: {code}"


@every_page
def test_files_of_settings_are_understood(page: Page) -> None:
    for block in page.blocks("toml"):
        if block.text.startswith("[[grant]]"):  # a policy, which is a file of its own
            assert policy_file.parse(block.text, page.name).entries
            continue
        for group, keys in tomllib.loads(block.text).items():
            assert group in GROUPS, f"{page.name}: [{group}]"
            for key in keys:
                dotted = f"{group}.{key}"
                is_file = is_secret(dotted.removesuffix("_file"))
                assert dotted in fields() or f"{dotted}." == CLIENT_TABLE or is_file, f"{page.name}: {dotted}"


@every_page
def test_metrics_that_are_named_exist(page: Page) -> None:
    known = set(re.findall(r"`(tidegate_\w+)`", metrics.reference()))
    for code in page.inline_code():
        if re.fullmatch(r"tidegate_[a-z_]+", code):
            assert code in known, f"{page.name}: {code}"


def test_every_reason_and_state_has_its_advice() -> None:
    text = page("docs/guides/dead-letters.md").text
    assert not [reason.value for reason in Reason if f"`{reason.value}`" not in text]
    assert not [state.value for state in FailureState if f"`{state.value}`" not in text]


def test_log_messages_that_are_named_are_logged() -> None:
    table = page("docs/guides/running.md").text.partition("| `message` | level | says |")[2].partition("\n\n")[0]
    named = {
        name
        for line in table.splitlines()
        for name in re.findall(r"`([a-z_]+)`", line.split("|")[1:2][0] if "|" in line else "")
    }
    named -= {"message"}
    source = "".join(module.text for module in product())
    assert named
    assert not {name for name in named if f'"{name}"' not in source}


def test_the_readme_is_read_in_one_go() -> None:
    assert len(page("README.md").text.splitlines()) <= 155
