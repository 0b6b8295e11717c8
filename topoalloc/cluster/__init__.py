"""What the API server is told about this node: labels, a readable picture, why a pod was rejected."""
