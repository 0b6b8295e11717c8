"""The conversation with the kubelet: device plugin servers, registration, PodResources and pods API clients."""

import os

# The C core writes a line to standard error for every connection a restarting kubelet drops.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
