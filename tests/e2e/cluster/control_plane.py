"""etcd, API server, scheduler and controller manager of a test cluster, with role based access as in a real one."""

from __future__ import annotations

import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.cluster.binaries import binary
from tests.e2e.cluster.keeper import SERVICE_ADDRESS
from tests.e2e.cluster.namespaces import Process, Room, wait_for

SERVICE_RANGE = "10.96.0.0/24"
START_S = 90.0
REQUEST_S = 30.0
NODES_MAX = 4
# Users of the token file: (user, groups). Nodes are added by name.
ADMIN = ("admin", "system:masters")
SCHEDULER = ("system:kube-scheduler", "")
CONTROLLERS = ("system:kube-controller-manager", "")


@dataclass
class ControlPlane:
    """Runs in the house's own room; `address` is where this machine reaches the API server."""

    base: Path
    room: Room
    address: str
    extenders: Sequence[Mapping[str, object]] = ()
    tokens: dict[str, str] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def kubeconfig(self) -> Path:
        """For a person or a test on this machine, as administrator."""
        return self.base / "admin.kubeconfig"

    def start(self) -> None:
        (self.base / "pki").mkdir()
        self._make_certificates()
        nodes = [(f"system:node:node-{number}", "system:nodes") for number in range(NODES_MAX)]
        users = [ADMIN, SCHEDULER, CONTROLLERS, *nodes]
        self.tokens = {user: secrets.token_hex(16) for user, _ in users}
        lines = [f'{self.tokens[user]},{user},{user},"{groups}"' for user, groups in users]
        (self.base / "tokens.csv").write_text("\n".join(lines) + "\n")
        self.write_kubeconfig(self.kubeconfig, "admin", self.address)
        self._run("etcd", self._etcd())
        self.start_api_server()
        for name, user in (("kube-scheduler", SCHEDULER[0]), ("kube-controller-manager", CONTROLLERS[0])):
            self.write_kubeconfig(self.base / f"{name}.kubeconfig", user)
        self._run("kube-scheduler", self._scheduler())
        self._run("kube-controller-manager", self._controller_manager())

    def start_api_server(self) -> None:
        self._run("kube-apiserver", self._api_server())
        wait_for(self.ready, START_S, "the API server answers")

    def ready(self) -> bool:
        process = self.processes["kube-apiserver"]
        if not process.alive():
            raise RuntimeError(f"kube-apiserver ended:\n{process.tail()}")
        return self.kubectl("get", "--raw", "/readyz", check=False) == "ok"

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        """Run kubectl as administrator; its output. Raises RuntimeError with what it complained of."""
        done = subprocess.run(
            [str(binary("kubectl")), "--kubeconfig", str(self.kubeconfig), *arguments],
            check=False,
            input=text,
            capture_output=True,
            text=True,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One call of the API as administrator, without kubectl's start; raises urllib.error.HTTPError."""
        headers = {"Authorization": f"Bearer {self.tokens['admin']}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(f"https://{self.address}{path}", data, headers, method=method)
        trusted = ssl.create_default_context(cafile=f"{self.base}/pki/ca.crt")
        with urllib.request.urlopen(asked, timeout=REQUEST_S, context=trusted) as answer:
            return json.load(answer)

    def attempt(self, method: str, path: str, body: Mapping[str, Any], token: str) -> tuple[int, str]:
        """One call with somebody's token; the status and the text of the answer, whatever they are."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        asked = urllib.request.Request(
            f"https://{self.address}{path}", json.dumps(body).encode(), headers, method=method
        )
        trusted = ssl.create_default_context(cafile=f"{self.base}/pki/ca.crt")
        try:
            with urllib.request.urlopen(asked, timeout=REQUEST_S, context=trusted) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def write_kubeconfig(self, path: Path, user: str, address: str = SERVICE_ADDRESS) -> None:
        cluster = {"server": f"https://{address}:443", "certificate-authority": f"{self.base}/pki/ca.crt"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        }
        path.write_text(json.dumps(content))

    def _run(self, name: str, arguments: Sequence[str]) -> None:
        self.processes[name] = self.room.start(name, arguments, self.base / "logs" / f"{name}.log")

    def _make_certificates(self) -> None:
        pki = self.base / "pki"
        names = f"IP:{SERVICE_ADDRESS},IP:{self.address},IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"
        new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        _quiet([*new, "-subj", "/CN=e2e-ca", "-keyout", f"{pki}/ca.key", "-out", f"{pki}/ca.crt"])
        signed = ["-CA", f"{pki}/ca.crt", "-CAkey", f"{pki}/ca.key", "-addext", f"subjectAltName={names}"]
        written = ["-keyout", f"{pki}/server.key", "-out", f"{pki}/server.crt"]
        _quiet([*new, "-subj", "/CN=kube-apiserver", *signed, *written])
        _quiet(["openssl", "genrsa", "-out", f"{pki}/accounts.key", "2048"])
        _quiet(["openssl", "rsa", "-in", f"{pki}/accounts.key", "-pubout", "-out", f"{pki}/accounts.pub"])

    def _etcd(self) -> list[str]:
        client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
        return [
            "etcd",
            f"--data-dir={self.base}/etcd",
            "--log-level=warn",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _api_server(self) -> list[str]:
        pki = self.base / "pki"
        return [
            str(binary("kube-apiserver")),
            "--etcd-servers=http://127.0.0.1:2379",
            "--bind-address=0.0.0.0",
            "--secure-port=443",
            f"--advertise-address={SERVICE_ADDRESS}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            f"--tls-cert-file={pki}/server.crt",
            f"--tls-private-key-file={pki}/server.key",
            f"--token-auth-file={self.base}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--service-account-key-file={pki}/accounts.pub",
            f"--service-account-signing-key-file={pki}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged",
        ]

    def _scheduler(self) -> list[str]:
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": f"{self.base}/kube-scheduler.kubeconfig"},
            "leaderElection": {"leaderElect": False},
            "extenders": list(self.extenders),
        }
        (self.base / "scheduler.json").write_text(json.dumps(config))
        return [str(binary("kube-scheduler")), f"--config={self.base}/scheduler.json"]

    def _controller_manager(self) -> list[str]:
        return [
            str(binary("kube-controller-manager")),
            f"--kubeconfig={self.base}/kube-controller-manager.kubeconfig",
            f"--service-account-private-key-file={self.base}/pki/accounts.key",
            f"--root-ca-file={self.base}/pki/ca.crt",
            "--use-service-account-credentials",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
        ]


def _quiet(arguments: Sequence[str]) -> None:
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments[0]}: {done.stderr.strip()}")
