"""A package that adds a library, made of two others, and a service beside devices."""
