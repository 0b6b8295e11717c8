"""A rehearsal of pods on a recorded machine: run it, read off who got what, print it."""
