"""What the agent's watchdog found becomes one event on the pod, and no finding more than one."""

from __future__ import annotations

import time
from pathlib import Path

from tests.cluster.fake_api import LIMIT_S, FakeApi
from tests.cluster.published import fake_api, publishing
from topoalloc.agent.share_files import OVERUSE, read_list, write_list
from topoalloc.cluster.publisher import REJECTED_AGO_MAX_S, Wanted
from topoalloc.sharing.overuse import Overuse
from topoalloc.sharing.overuse_record import OveruseRecord, parse_records, records_text

GIB = 1024**3


def found(pod: str, ago_s: float = 0.0) -> OveruseRecord:
    at_s = int(time.time() - ago_s)
    return OveruseRecord(at_s, Overuse.MEMORY, "default", pod, f"uid-{pod}", "main", "GPU-8e", 9 * GIB, 8 * GIB, 1, 1)


def pods_with_events(api: FakeApi) -> list[str]:
    return sorted(str(event["involvedObject"]["name"]) for event in api.events.values())  # type: ignore[index]


def test_a_finding_of_the_agents_is_an_event_on_the_pod(tmp_path: Path):
    write_list(str(tmp_path), OVERUSE, records_text([found("a"), found("b")]))

    with fake_api(tmp_path) as (api, config):
        with publishing(config, overuses=lambda: parse_records(read_list(str(tmp_path), OVERUSE))):
            assert api.wait_for(lambda: len(api.events) == 2)

        event = next(iter(api.events.values()))
        assert pods_with_events(api) == ["a", "b"]
        assert (event["reason"], event["type"]) == ("GpuShareOveruse", "Warning")
        assert "holds 9216 MiB" in str(event["message"])


def test_a_publisher_that_starts_again_writes_no_second_event(tmp_path: Path):
    records = (found("a"),)
    with fake_api(tmp_path) as (api, config):
        for _ in range(2):
            with publishing(config, overuses=lambda: records):
                assert api.wait_for(lambda: len(api.events) == 1)
        with publishing(config, overuses=lambda: (*records, found("b"))):
            assert api.wait_for(lambda: len(api.events) == 2)

        assert pods_with_events(api) == ["a", "b"]


def test_a_finding_of_long_ago_is_no_news(tmp_path: Path):
    records = (found("old", REJECTED_AGO_MAX_S + 60), found("new"))
    with fake_api(tmp_path) as (api, config), publishing(config, overuses=lambda: records):
        assert api.wait_for(lambda: api.events)

        assert pods_with_events(api) == ["new"]


def test_without_events_wanted_none_is_written(tmp_path: Path):
    with fake_api(tmp_path) as (api, config):
        with publishing(config, wanted=Wanted(events=False), overuses=lambda: (found("a"),)):
            assert api.wait_for(lambda: any(request.method == "GET" for request in api.requests))

        assert api.events == {}
    assert LIMIT_S > 0
