"""The host of the tests with a real server: made once, shared by all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import sglang_host as sh


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> sh.Host:
    try:
        python = sh.environment()
    except sh.NotOfferedError as error:
        pytest.skip(f"no SGLang for this machine: {error}")
    return sh.Host(python, sh.install(python, tmp_path_factory.mktemp("library")))


@pytest.fixture(scope="session")
def models(host: sh.Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    host.run(str(sh.HERE / "host" / "make_models.py"), str(folder))
    return folder


@pytest.fixture(scope="session")
def start(
    host: sh.Host, models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., AbstractContextManager[sh.Server]]:
    """Call it with flags and settings to start a server of the small target."""
    logs = tmp_path_factory.mktemp("logs")
    return partial(_start, host, models / "target", logs)


def _start(host: sh.Host, model: Path, logs: Path, *flags: str, **settings: str) -> AbstractContextManager[sh.Server]:
    log = logs / f"{len(list(logs.iterdir()))}.log"
    return sh.serving(host, model, log, *flags, **settings)


@pytest.fixture(scope="module")
def plain(start: Callable[..., AbstractContextManager[sh.Server]]) -> Iterator[sh.Server]:
    """The server without the flag. Under its overlap schedule, its penalties would trail by one token."""
    with start("--disable-overlap-schedule", "--enable-return-hidden-states") as server:
        yield server
