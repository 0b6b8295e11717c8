"""Kubernetes YAML as pods, and one clear line for everything that is not."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoalloc import yaml_documents as limits
from topoalloc.admission.pod import Pod
from topoalloc.errors import InputError
from topoalloc.kubelet.simulated.manifests import Manifests, manifests_of, read_manifests
from topoalloc.yaml_documents import parse_documents, read_documents


def manifests(text: str) -> Manifests:
    return manifests_of(parse_documents(textwrap.dedent(text), "pods.yaml"))


def pods(text: str) -> tuple[Pod, ...]:
    return manifests(text).pods


def fault(text: str) -> str:
    with pytest.raises(InputError) as caught:
        manifests(text)
    line = str(caught.value)
    assert "\n" not in line
    return line


def with_resources(resources: str) -> str:
    return f"kind: Pod\nmetadata: {{name: a}}\nspec: {{containers: [{{name: c, resources: {resources}}}]}}"


def test_documents_become_pods_in_their_order_and_empty_ones_are_passed_over() -> None:
    found = pods("""
        ---
        kind: Pod
        metadata: {name: b, namespace: team}
        spec: {containers: [{name: c}]}
        ---
        ---
        kind: Pod
        metadata: {name: a}
        spec: {containers: [{name: c}]}
    """)
    assert [(one.namespace, one.name) for one in found] == [("team", "b"), ("default", "a")]


def test_init_containers_come_first_and_always_makes_a_sidecar() -> None:
    (one,) = pods("""
        kind: Pod
        metadata: {name: a}
        spec:
          containers: [{name: app}]
          initContainers: [{name: prep}, {name: side, restartPolicy: Always}]
    """)
    assert [(c.name, c.init, c.restartable) for c in one.containers] == [
        ("prep", True, False),
        ("side", True, True),
        ("app", False, False),
    ]


def test_requests_default_to_limits_as_the_api_server_stores_them() -> None:
    (one,) = pods(with_resources("{limits: {cpu: 500m, memory: 1Gi, a.test/gpu: '2'}, requests: {cpu: 0.25}}"))
    (container,) = one.containers
    assert {name: str(amount) for name, amount in container.requests.items()} == {
        "cpu": "0.25",
        "memory": str(2**30),
        "a.test/gpu": "2",
    }


@pytest.mark.parametrize(
    ("kind", "spec", "names"),
    [
        ("Deployment", "{replicas: 2, template: @}", ["w-0", "w-1"]),
        ("ReplicaSet", "{template: @}", ["w-0"]),
        ("StatefulSet", "{replicas: 3, template: @}", ["w-0", "w-1", "w-2"]),
        ("DaemonSet", "{template: @}", ["w-0"]),
        ("Job", "{parallelism: 2, template: @}", ["w-0", "w-1"]),
        ("Job", "{parallelism: 5, completions: 2, template: @}", ["w-0", "w-1"]),
        ("CronJob", "{jobTemplate: {spec: {template: @}}}", ["w-0"]),
        ("Deployment", "{replicas: 0, template: @}", []),
    ],
)
def test_a_workload_becomes_the_pods_of_its_template(kind: str, spec: str, names: list[str]) -> None:
    template = "{spec: {containers: [{name: c}]}}"
    found = pods(f"kind: {kind}\nmetadata: {{name: w}}\nspec: {spec.replace('@', template)}")
    assert [one.name for one in found] == names


def test_a_list_holds_any_of_them_and_a_pod_list_needs_no_kinds() -> None:
    item = "{metadata: {name: N}, spec: {containers: [{name: c}]}}"
    text = f"kind: List\nitems: [{{kind: PodList, items: [{item.replace('N', 'a')}, {item.replace('N', 'b')}]}}]"
    assert [one.name for one in pods(text)] == ["a", "b"]


def test_generated_names_are_numbered() -> None:
    one = "kind: Pod\nmetadata: {generateName: g-}\nspec: {containers: [{name: c}]}\n"
    assert [found.name for found in pods(f"{one}---\n{one}")] == ["g-0", "g-1"]


def test_the_uid_of_a_pod_repeats_from_run_to_run() -> None:
    text = with_resources("{}")
    assert pods(text)[0].uid == pods(text)[0].uid


def test_other_kinds_are_passed_over_with_a_note() -> None:
    found = manifests("kind: Service\nmetadata: {name: s}")
    assert found.pods == ()
    assert found.notes == ("pods.yaml: document 1: a Service runs no pods: skipped",)


def test_pod_level_requests_default_to_those_of_the_containers() -> None:
    (one,) = pods("""
        kind: Pod
        metadata: {name: a}
        spec:
          resources: {limits: {cpu: 4, memory: 2Gi}}
          containers: [{name: c, resources: {requests: {cpu: 1}}}, {name: d, resources: {requests: {cpu: 2}}}]
    """)
    assert {name: str(amount) for name, amount in one.requests.items()} == {"cpu": "3", "memory": str(2 * 2**30)}


FAULTS = {
    "a tab": ("kind: Pod\n\tmetadata:", "document 1: line 2, column 1: a tab cannot indent YAML: use spaces"),
    "an alias": ("a: &x [1]\nb: *x", "line 2, column 4: the alias *x is not accepted: write the value out"),
    "a tag": ("a: !!python/name:os.system x", "the tag 'tag:yaml.org,2002:python/name:os.system' is not accepted"),
    "a key twice": ("a: 1\na: 2", "document 1: line 2, column 1: the key 'a' appears twice"),
    "depth": ("[" * 100, "nested deeper than 64 levels"),
    "an open bracket": ("a: [1,", "did not find expected"),
    "a control character": ("a: \x01", "document 1: control characters are not allowed"),
    "no mapping": ("- 1", "pods.yaml: document 1: must be a mapping, not a list"),
    "no kind": ("metadata: {}", "document 1: kind: is missing"),
    "the second document": ("kind: Service\n---\nkind: 7", "pods.yaml: document 2: kind: must be text, not a number"),
    "no name": ("kind: Pod\nspec: {}", "document 1: metadata.name: is missing"),
    "a bad name": ("kind: Pod\nmetadata: {name: A_b}\nspec: {}", "metadata.name: 'A_b' is no name"),
    "a bad namespace": (
        "kind: Pod\nmetadata: {name: a, namespace: B}\nspec: {}",
        "metadata.namespace: 'B' is no namespace",
    ),
    "no spec": ("kind: Pod\nmetadata: {name: a}", "document 1: spec: is missing"),
    "no containers": ("kind: Pod\nmetadata: {name: a}\nspec: {}", "spec.containers: is missing or empty"),
    "containers of a wrong type": (
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: {name: c}}",
        "spec.containers: must be a list, not a mapping",
    ),
    "a container without a name": (
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{image: x}]}",
        "spec.containers[0].name: is missing",
    ),
    "two containers of one name": (
        "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}, {name: c}]}",
        "spec.containers: two containers are called 'c'",
    ),
    "two pods of one name": (
        f"{with_resources('{}')}\n---\n{with_resources('{}')}",
        "document 2: metadata.name: a pod 'a' in namespace 'default' was already defined in document 1",
    ),
    "a negative extended resource": (with_resources("{limits: {a.test/gpu: -1}}"), "greater than or equal to 0"),
    "half an extended resource": (with_resources("{limits: {a.test/gpu: 1.5}}"), "a.test/gpu: must be an integer"),
    "requests above limits": (
        with_resources("{limits: {a.test/gpu: 1}, requests: {a.test/gpu: 2}}"),
        "spec.containers[0].resources: container 'c', a.test/gpu: the request 2 must equal the limit 1",
    ),
    "requests without limits": (with_resources("{requests: {a.test/gpu: 2}}"), "Limit must be set"),
    "an unknown resource": (with_resources("{limits: {gpu: 1}}"), "resources.limits: 'gpu' is no resource"),
    "an amount of a wrong type": (with_resources("{limits: {cpu: [1]}}"), "limits.cpu: must be a quantity"),
    "no template": ("kind: Job\nmetadata: {name: a}\nspec: {}", "spec.template: is missing: a Job needs"),
    "replicas without end": (
        "kind: Deployment\nmetadata: {name: a}\nspec: {replicas: 100000, template: {spec: {containers: [{name: c}]}}}",
        "document 1: spec: 100000 pods: at most 1000",
    ),
    "negative replicas": (
        "kind: Deployment\nmetadata: {name: a}\nspec: {replicas: -1, template: {}}",
        "spec.replicas: must be a whole number of 0 or more, not '-1'",
    ),
    "lists without end": (
        "{kind: List, items: [" * 6 + "]}" * 6,
        "Lists nested deeper than 4",
    ),
}


@pytest.mark.parametrize(("text", "expected"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_one_line_with_its_place(text: str, expected: str) -> None:
    line = fault(text)
    assert line.startswith("pods.yaml: document ")
    assert expected in line


def test_a_missing_file_and_one_that_is_no_text_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        read_manifests(tmp_path / "nothing.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"not UTF-8 text \(byte 0\): is this YAML\?"):
        read_documents(binary)


def test_a_file_that_is_too_large_is_refused_before_it_is_read_as_yaml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DOCUMENT_BYTES_MAX", 1 << 20)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(InputError, match="larger than 1 MiB: split it"):
        read_documents(large)


def test_the_number_of_elements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_MAX", 100)
    with pytest.raises(InputError, match="more than 100 elements in one file"):
        parse_documents("[" + "1," * 200 + "]", "f")


def test_plain_words_and_numbers_mean_what_kubernetes_reads() -> None:
    (document,) = parse_documents('[yes, Off, null, ~, 7, 0x1f, 017, 1.5, 1e3, "1", 1Gi, 2024-01-01]', "f")
    assert document.value == [True, False, None, None, 7, 31, 15, 1.5, 1000.0, "1", "1Gi", "2024-01-01"]


@given(st.text(max_size=200))
def test_any_text_is_either_documents_or_one_line(text: str) -> None:
    try:
        manifests_of(parse_documents(text, "f"))
    except InputError as error:
        assert "\n" not in str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "kind",
                    "metadata",
                    "name",
                    "spec",
                    "containers",
                    "resources",
                    "limits",
                    "items",
                    "template",
                    "replicas",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_structure_is_either_pods_or_one_line(value: object) -> None:
    document = limits.Document("f", 1, value)
    try:
        manifests_of([document])
    except InputError as error:
        assert str(error).startswith("f: document 1: ")
