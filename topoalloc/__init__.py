"""Topology-true GPU sharing for Kubernetes nodes."""

__version__ = "0.1.0"
