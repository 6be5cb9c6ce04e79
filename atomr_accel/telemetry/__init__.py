"""What tells how a program fares: timelines, metrics, logs."""

from ._trace import trace

__all__ = ["trace"]
