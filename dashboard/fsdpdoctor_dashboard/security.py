"""Who may read: a token becomes a cookie, and no other host's name is answered to.

Other users of a login node reach 127.0.0.1 too, and a page of any site can make a
browser ask it (DNS rebinding): so a secret, a list of host names, and a policy that
lets a page load nothing but its own files.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from urllib.parse import urlencode

from flask import Flask, Response, request
from werkzeug.sansio.utils import host_is_trusted

LOCAL_HOSTS = ("127.0.0.1", "localhost")


def new_token() -> str:
    """A secret that nobody guesses."""
    return secrets.token_urlsafe(24)


def protect(
    server: Flask,
    *,
    token: str,
    hosts: Sequence[str],
    prefix: str,
    script_hashes: Sequence[str],
) -> None:
    """Guard every route of a server, Dash's own included."""
    # Two servers on one host share its cookies: their names must differ.
    cookie = f"fsdpdoctor-{hashlib.sha256(token.encode()).hexdigest()[:8]}"
    trusted = [*LOCAL_HOSTS, *hosts]
    server.config["TRUSTED_HOSTS"] = trusted
    policy = _policy(script_hashes)

    def admit() -> Response | None:
        if not host_is_trusted(request.headers.get("Host"), trusted):
            return Response("400: not a name of this server.", 400)
        given = request.args.get("token")
        if given is not None and hmac.compare_digest(given.encode(), token.encode()):
            return _with_cookie(cookie, token, prefix)
        held = request.cookies.get(cookie, "")
        if hmac.compare_digest(held.encode(), token.encode()):
            return None
        return Response(
            "403: open the address that `fsdpdoctor view` printed; it holds the token.",
            status=403,
            mimetype="text/plain",
        )

    def harden(answer: Response) -> Response:
        answer.headers["Content-Security-Policy"] = policy
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Referrer-Policy"] = "no-referrer"
        answer.headers["X-Frame-Options"] = "SAMEORIGIN"
        answer.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return answer

    server.before_request(admit)
    server.after_request(harden)


def _with_cookie(cookie: str, token: str, prefix: str) -> Response:
    """The same address without the token, which then is in no history or log."""
    left = [
        (name, value) for name, value in request.args.items(True) if name != "token"
    ]
    # One slash in front, or the browser would take the path for a host.
    target = prefix + request.path.lstrip("/")
    if left:
        target += f"?{urlencode(left)}"
    answer = Response(status=303, headers={"Location": target})
    answer.set_cookie(cookie, token, httponly=True, samesite="Strict", path=prefix)
    return answer


def _policy(script_hashes: Sequence[str]) -> str:
    scripts = " ".join(["'self'", *script_hashes])
    return "; ".join(
        (
            "default-src 'self'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",  # Dash sets style attributes
            "img-src 'self' data: blob:",
            "frame-ancestors 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "object-src 'none'",
        )
    )
