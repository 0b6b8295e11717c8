"""The environment a container would be started with: its Allocate answers, merged as a kubelet merges them."""

from __future__ import annotations

from collections.abc import Mapping

from topoalloc.admission.devices import Owner
from topoalloc.pb import deviceplugin_v1beta1_pb2 as wire


def environment_of(answers: Mapping[Owner, bytes], container: str) -> dict[str, str]:
    """Variables of one container; of two values for one name the kubelet keeps whichever comes first.

    A kubelet goes through the resources in random order; here they come by name, so a conflict shows as a missing
    value and not as a difference from run to run.
    """
    merged: dict[str, str] = {}
    for owner in sorted(answers):
        if owner.container == container:
            answer = wire.ContainerAllocateResponse.FromString(answers[owner])
            for name in sorted(answer.envs):
                merged.setdefault(name, answer.envs[name])
    return merged
