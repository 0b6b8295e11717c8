# One virtual environment, made by `make dev`; every other target uses it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROTOS := $(wildcard proto/topoalloc/pb/*.proto)

.DEFAULT_GOAL := help
.PHONY: help dev check test test-slow bench demo proto check-proto

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/.dev: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing topoalloc and its tools into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

dev: $(BIN)/.dev ## make the virtual environment with every tool

proto: $(BIN)/.dev ## generate topoalloc/pb from proto/
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --mypy_out=. --grpc_python_out=. --mypy_grpc_out=. $(PROTOS)
	@rm -f topoalloc/pb/core_v1_pod_pb2_grpc.py topoalloc/pb/core_v1_pod_pb2_grpc.pyi
