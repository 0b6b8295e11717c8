"""Errors say whose fault it was; the command line prints one line and exits with `status`."""

from __future__ import annotations


class TopoallocError(Exception):
    """Base of every error a person is meant to read: one line, with what to do about it."""

    status = 1


class InputError(TopoallocError):
    """A file, argument or configuration that was given is at fault."""

    status = 2


class MachineError(TopoallocError):
    """This machine lacks or denies something (a driver, a directory, a permission)."""


class KubeletError(TopoallocError):
    """The kubelet refused or broke its own contract."""
