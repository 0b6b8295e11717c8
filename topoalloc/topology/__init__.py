"""What a machine is: NUMA nodes, the PCIe tree, GPUs, NICs and the links between them."""
