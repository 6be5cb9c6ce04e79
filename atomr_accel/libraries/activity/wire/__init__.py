"""Messages of activity tracing."""
