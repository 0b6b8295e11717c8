#!/usr/bin/python3 -IS
"""runc for made-up machines: leaves out the CPU and memory node sets, which do not exist here, and runs the real runc.

What the kubelet asked for is kept in the bundle: config.json.asked, and one line for each update in updates.asked.
"""

import json
import os
import sys
from pathlib import Path

RUNC = "/usr/sbin/runc"


def without_cpus(spec):
    for cpu in (spec.get("linux", {}).get("resources", {}).get("cpu"), spec.get("cpu")):
        if isinstance(cpu, dict):
            cpu.pop("cpus", None)
            cpu.pop("mems", None)
    return spec


arguments = sys.argv[1:]
if "create" in arguments and "--bundle" in arguments:
    path = Path(arguments[arguments.index("--bundle") + 1]) / "config.json"
    asked = path.read_text()
    path.with_name("config.json.asked").write_text(asked)
    path.write_text(json.dumps(without_cpus(json.loads(asked))))
elif "update" in arguments:
    update = sys.stdin.buffer.read()
    if update:
        log = Path(arguments[arguments.index("--log") + 1])
        with log.with_name("updates.asked").open("ab") as kept:
            kept.write(update.strip() + b"\n")
        reading, writing = os.pipe()
        os.write(writing, json.dumps(without_cpus(json.loads(update))).encode())
        os.close(writing)
        os.dup2(reading, 0)
os.execv(RUNC, [RUNC, *arguments])
