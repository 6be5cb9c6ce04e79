"""Models in ONNX files, run as engines in hosts."""
