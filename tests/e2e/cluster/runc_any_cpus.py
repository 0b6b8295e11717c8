#!/usr/bin/python3 -IS
"""runc for made-up machines: leaves out the CPU and memory node sets, which do not exist here, and runs the real runc.

What the kubelet asked for is kept beside the bundle's config.json as config.json.asked; of an update the last
resources are kept as resources.asked in the folder named by TOPOALLOC_E2E_UPDATES, where it is set.
"""

import json
import os
import sys

RUNC = "/usr/sbin/runc"


def without_cpus(spec):
    for cpu in (spec.get("linux", {}).get("resources", {}).get("cpu"), spec.get("cpu")):
        if isinstance(cpu, dict):
            cpu.pop("cpus", None)
            cpu.pop("mems", None)
    return spec


arguments = sys.argv[1:]
if "create" in arguments and "--bundle" in arguments:
    path = os.path.join(arguments[arguments.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    with open(path + ".asked", "w") as file:
        json.dump(spec, file)
    with open(path, "w") as file:
        json.dump(without_cpus(spec), file)
elif "update" in arguments:
    asked = sys.stdin.buffer.read()
    if asked:
        reading, writing = os.pipe()
        os.write(writing, json.dumps(without_cpus(json.loads(asked))).encode())
        os.close(writing)
        os.dup2(reading, 0)
os.execv(RUNC, [RUNC, *arguments])
