"""Hypothesis profiles: small by default, large in the slow run (`TOPOALLOC_SLOW=1`)."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "quick", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile(
    "slow", max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
settings.load_profile("slow" if os.environ.get("TOPOALLOC_SLOW") else "quick")
