"""The patch: applied, the node says what it should; nothing else changes; nothing to do is nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topoalloc.cluster.node_labels import OWN_LABELS
from topoalloc.cluster.node_patch import TOPOLOGY_ANNOTATION, NodeWords, merge_patch

VALUES = st.sampled_from(["", "a", "b"])
OTHERS = st.sampled_from(["x", "topoalloc.io/pool", "kubernetes.io/hostname"])
WANTED = st.builds(
    NodeWords,
    st.dictionaries(st.sampled_from(OWN_LABELS), VALUES),
    st.dictionaries(st.just(TOPOLOGY_ANNOTATION), VALUES),
)
PRESENT = st.builds(
    NodeWords,
    st.dictionaries(st.sampled_from(OWN_LABELS) | OTHERS, VALUES),
    st.dictionaries(st.just(TOPOLOGY_ANNOTATION) | OTHERS, VALUES),
)


def applied(patch: object, present: NodeWords) -> NodeWords:
    """What RFC 7396 makes of it."""
    parts = {"labels": dict(present.labels), "annotations": dict(present.annotations)}
    assert isinstance(patch, dict)
    for part, changes in patch["metadata"].items():
        for key, value in changes.items():
            if value is None:
                del parts[part][key]  # a patch that removes what is not there would be a write for nothing
            else:
                parts[part][key] = value
    return NodeWords(parts["labels"], parts["annotations"])


@given(WANTED, PRESENT)
def test_a_patched_node_says_what_it_should_and_nothing_else_has_changed(wanted: NodeWords, present: NodeWords):
    patch = merge_patch(wanted, present)
    after = present if patch is None else applied(patch, present)

    for key in OWN_LABELS:
        assert after.labels.get(key) == wanted.labels.get(key)
    assert after.annotations.get(TOPOLOGY_ANNOTATION) == wanted.annotations.get(TOPOLOGY_ANNOTATION)
    for key in present.labels.keys() - set(OWN_LABELS):
        assert after.labels[key] == present.labels[key]
    assert merge_patch(wanted, after) is None


@given(WANTED, PRESENT)
def test_a_patch_changes_something_or_there_is_none(wanted: NodeWords, present: NodeWords):
    patch = merge_patch(wanted, present)

    assert patch is None or applied(patch, present) != present
