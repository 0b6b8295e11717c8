"""How GPUs are cut into cores and memory units, what the resources are called, and what a grant injects."""
