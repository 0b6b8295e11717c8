"""The DaemonSet process: configuration, threads, shutdown."""
