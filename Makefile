# One virtual environment, made on first use; every target runs in it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROTOS := $(wildcard proto/topoalloc/pb/*.proto)
DEMO_MACHINE := tests/machines/dgx-a100-epyc-nps4-10nic.topo-m.txt

.DEFAULT_GOAL := help
.PHONY: help dev shim check test test-slow bench demo proto check-proto e2e e2e-slow e2e-components cluster shim-gpu gpu-e2e gpu-e2e-pack

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/.run: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv: install Debian's python3-venv"; exit 1; }
	@echo "installing topoalloc into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(BIN)/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv: install Debian's python3-venv"; exit 1; }
	@echo "installing topoalloc and its tools into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(BIN)/.run

dev: $(BIN)/.dev ## make the virtual environment with every tool

SHIM := topoalloc/sharing/shim

shim: $(SHIM)/libtopoalloc-vcuda.so $(SHIM)/topoalloc-verify ## build what keeps containers within their shares (needs a C compiler)

$(SHIM)/libtopoalloc-vcuda.so: $(wildcard $(SHIM)/*.[cS] $(SHIM)/*.h $(SHIM)/*.def) $(SHIM)/exports.map $(SHIM)/compile.flags
	$(CC) @$(SHIM)/compile.flags $(wildcard $(SHIM)/*.[cS]) -o $@.new && mv $@.new $@

$(SHIM)/topoalloc-verify: $(wildcard $(SHIM)/verify/*.c) $(SHIM)/verify/compile.flags $(SHIM)/usage_layout.h
	$(CC) @$(SHIM)/verify/compile.flags $(wildcard $(SHIM)/verify/*.c) -o $@.new && mv $@.new $@

demo: $(BIN)/.run ## eight pods on a recorded DGX A100 under single-numa-node
	@$(BIN)/topoalloc simulate --node $(DEMO_MACHINE) --gpu-memory 40GiB --pods deploy/demo/pods.yaml --policy single-numa-node

check: $(BIN)/.dev ## format, lint, types, import directions, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory check-proto

# With a C compiler the library is tested as it is shipped; without one its tests say that they are skipped.
COMPILER := $(shell command -v $(CC) 2>/dev/null)

test: $(BIN)/.dev $(if $(COMPILER),shim) ## every test that takes seconds
	$(BIN)/pytest -n auto -m "not slow and not e2e" $(PYTEST_ARGS)

test-slow: $(BIN)/.dev $(if $(COMPILER),shim) ## every test but end to end, with 10,000 examples per property (hours on two cores)
	TOPOALLOC_SLOW=1 $(BIN)/pytest -n auto -m "not e2e" --timeout 7200 -o faulthandler_timeout=0 $(PYTEST_ARGS)

# One test after the other and in the order of the files: a cluster takes its time to start.
E2E := $(BIN)/pytest tests/e2e -p no:randomly --timeout 1800 -o faulthandler_timeout=0

e2e: $(BIN)/.dev e2e-components ## against a real Kubernetes on this machine (root; half an hour more the first time)
	$(E2E) -m "not slow" $(PYTEST_ARGS)

e2e-slow: export TOPOALLOC_SLOW = 1
e2e-slow: $(BIN)/.dev e2e-components ## the same with 50 restarts, 500 containers, 1,500 compared pods, 20,000 cases (hours)
	$(E2E) $(PYTEST_ARGS)

# COMPONENTS="oracle" builds only that; COMPONENTS="kubelet-1.36" the kubelet of an earlier minor release.
e2e-components: $(BIN)/.dev ## build a real Kubernetes, containerd and the oracle (needs Go; half an hour the first time)
	@$(BIN)/python tests/e2e/components/build.py $(COMPONENTS)

# ARGS="--machine dgx1-v100-4nic-unsorted-columns.topo-m.txt --nodes 2 --policy none", ARGS=--help for all of them.
cluster: $(BIN)/.dev e2e-components ## a real Kubernetes with topoalloc on it to play with, until Ctrl-C
	@$(BIN)/python -m tests.e2e.cluster $(ARGS)

bench: $(BIN)/.dev ## speed and memory, printed and never judged
	$(BIN)/pytest tests/bench --benchmark-only --benchmark-columns=min,median,max,rounds -p no:randomly $(PYTEST_ARGS)

# SECTIONS="memory compute" runs only these; OUT names the folder of the results. Plain python3, no virtual environment.
shim-gpu: shim ## prove the sharing library on a real GPU (idle; under ten minutes)
	@python3 tests/gpu/shim_gpu.py $(SECTIONS)

# On a machine without a package index: build/gpu-e2e/gpu-e2e.tar.xz is made where there is one and carried there.
gpu-e2e-pack: ## pack kubelet, containerd, runc and wheels for gpu-e2e (minutes, under 60 MB)
	@python3 tests/gpu/pack.py

gpu-e2e: shim ## PyTorch in three pods on one real GPU, under the real kubelet and the agent (root; under ten minutes)
	@python3 tests/gpu/gpu_e2e.py

proto: $(BIN)/.dev ## generate topoalloc/pb from proto/
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --mypy_out=quiet:. \
	  --grpc_python_out=. --mypy_grpc_out=quiet:. $(PROTOS)
	@rm -f topoalloc/pb/core_v1_pod_pb2_grpc.py topoalloc/pb/core_v1_pod_pb2_grpc.pyi

check-proto: proto ## fail if the generated code is not what proto/ gives
	@git diff --exit-code --stat -- topoalloc/pb || { echo "topoalloc/pb is stale: run make proto and commit"; exit 1; }
