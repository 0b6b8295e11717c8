"""The conversation with the kubelet: device plugin servers, registration, PodResources and pods API clients."""
