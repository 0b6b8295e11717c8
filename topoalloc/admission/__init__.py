"""What the kubelet will say: topology hints, policies and the CPU and memory managers' hints, as pure functions."""
