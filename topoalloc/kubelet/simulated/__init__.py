"""A kubelet without containers: the real agent talks to it over unix sockets, and it decides as a kubelet does."""
