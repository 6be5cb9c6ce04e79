"""The chat page: one file, without anything from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final

_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ChatPage:
    """A page, with headers that have browsers run only its own script."""

    headers: tuple[tuple[str, str], ...]
    body: bytes


def chat_page(model: str, *, faults: bool) -> ChatPage:
    """Return the page.

    Args:
        model: the model's name.
        faults: whether it has a button that faults the device.
    """
    text = (files(__package__) / "page" / "chat.html").read_text(encoding="utf-8")
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, inside in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        allowed[kind].append(f"'sha256-{digest}'")
    policy = (
        f"default-src 'none'; script-src {' '.join(allowed['script'])}; "
        f"style-src {' '.join(allowed['style'])}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    text = text.replace("{{model}}", escape(model)).replace("{{faults}}", "yes" if faults else "no")
    headers = (
        ("content-type", "text/html; charset=utf-8"),
        ("cache-control", "no-store"),
        ("content-security-policy", policy),
        ("cross-origin-opener-policy", "same-origin"),
        ("referrer-policy", "no-referrer"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
    )
    return ChatPage(headers, text.encode())
