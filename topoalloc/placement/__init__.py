"""Which GPUs and NICs a container should get: pure choice over free capacity."""
