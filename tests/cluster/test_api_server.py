"""The client of the API server: every request ends in time, whatever comes or does not come back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.fake_api import LIMIT_S, NODE, Fault, kubeconfig
from tests.cluster.published import fake_api
from topoalloc.cluster.api_server import UNREACHED, ApiError, ApiServer
from topoalloc.errors import InputError

TIMEOUT_S = 0.3


@pytest.mark.parametrize(
    "fault",
    [Fault(slow=True), Fault(drip="chunked"), Fault(drip="counted"), Fault(code=500, drip="counted")],
    ids=["silent", "dripping in chunks", "dripping", "dripping a refusal"],
)
def test_an_answer_that_does_not_come_in_time_is_given_up(tmp_path: Path, fault: Fault):
    with fake_api(tmp_path) as (api, config):
        api.faults.append(fault)
        server = ApiServer(config, TIMEOUT_S)
        began_s = time.monotonic()

        with pytest.raises(ApiError) as raised:
            server.node(NODE)

        assert raised.value.code == (fault.code or UNREACHED)
        assert time.monotonic() - began_s < LIMIT_S / 2
        assert server.node(NODE)


def test_a_refusal_carries_its_code_its_words_and_when_to_come_back(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        api.faults.append(Fault(code=429, headers=(("Retry-After", "7"),)))

        with pytest.raises(ApiError, match="429 on purpose") as raised:
            ApiServer(config).node(NODE)

        assert (raised.value.code, raised.value.retry_after_s) == (429, 7.0)


def test_a_token_that_no_header_can_hold_is_a_failure_like_others(tmp_path: Path):
    with fake_api(tmp_path) as (_, config):
        (tmp_path / "token").write_text("two\nlines")

        with pytest.raises(ApiError):
            ApiServer(config).node(NODE)


def test_no_request_begins_after_the_end(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        server = ApiServer(config)
        server.close()

        with pytest.raises(ApiError):
            server.node(NODE)
        assert api.requests == []


def test_a_kubeconfig_without_its_token_is_the_inputs_fault(tmp_path: Path):
    config = kubeconfig(tmp_path, 1)
    (tmp_path / "token").unlink()

    with pytest.raises(InputError, match="no kubeconfig"):
        ApiServer(config)
