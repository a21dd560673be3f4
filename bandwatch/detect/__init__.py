"""Change detection: from one series to its changes, from changes to incidents."""

from .incidents import Incident, group
from .steps import Change, Metric, Series, detect

__all__ = ["Change", "Incident", "Metric", "Series", "detect", "group"]
