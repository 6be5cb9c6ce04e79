"""The program's own functions, run in the host: messages, executors and pickling."""
