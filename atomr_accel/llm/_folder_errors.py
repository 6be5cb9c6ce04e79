"""Errors of model folders."""

from __future__ import annotations

from .._errors import AccelError


class ModelFolderBroken(AccelError):
    """A folder of a model has a file that is missing, damaged or does not fit the others.

    The message names the file, and the field or the tensor.
    """


class ChatRefused(AccelError, ValueError):
    """A chat template refuses the messages, or cannot render them."""
