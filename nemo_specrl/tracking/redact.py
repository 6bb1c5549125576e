"""Secrets stay out of whatever is recorded: configurations, patches, URIs, log lines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"
_SECRET_NAME = re.compile(
    r"(^|[_.\-/])((api_?key|access_?key|key_id|secrets?|passwd|password|passphrase|credentials?|authorization"
    r"|private_?key)($|[_.\-/])|(token|auth|bearer)$)",
    re.IGNORECASE,
)
_SECRET_TEXT = re.compile(
    r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_\-]{16,}|nvapi-[A-Za-z0-9_\-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|glpat-[A-Za-z0-9_\-]{16,}|AKIA[A-Z0-9]{12,}|(?<=[Bb]earer )[A-Za-z0-9._\-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
_USERINFO = re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]*(?=@)")
_ASSIGNMENT = re.compile(
    r"(?i)(\b[\w.\-]*(?:api_?key|access_?key|secret|token|passwd|password|credentials?)\b[\"']?\s*[=:]\s*[\"']?)"
    r"([^\s\"',;]{8,})"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable or key of this name holds a secret: HF_TOKEN does, max_prompt_tokens does not."""
    return _SECRET_NAME.search(name) is not None


def redact_text(text: str, environ: Mapping[str, str] | None = None) -> str:
    """The text without passwords in URIs, well-known token shapes, and the values of secret environment variables."""
    for name, value in (os.environ if environ is None else environ).items():
        if len(value) >= 8 and is_secret_name(name):
            text = text.replace(value, REDACTED)
    return _SECRET_TEXT.sub(REDACTED, _USERINFO.sub(REDACTED, text))


def redact_patch(text: str) -> str:
    """`redact_text`, and what looks like the assignment of a secret: source may spell one out."""
    return _ASSIGNMENT.sub(rf"\g<1>{REDACTED}", redact_text(text))


def redact(values: Any, name: str = "") -> Any:
    """A nested value with every secret in it replaced; containers keep their shape."""
    if isinstance(values, Mapping):
        return {key: redact(value, str(key)) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [redact(value, name) for value in values]
    if isinstance(values, str):
        return REDACTED if values and is_secret_name(name) else redact_text(values)
    return values
