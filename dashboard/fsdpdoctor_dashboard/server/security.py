"""Who may read: a token becomes a cookie, and no other host's name is answered to.

Other users of a login node reach 127.0.0.1 too, and a page of any site can make a
browser ask it (DNS rebinding): so a secret, a list of host names, and a policy that
lets a page load nothing but its own files.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from flask import Flask, Response, current_app, request
from werkzeug.exceptions import HTTPException
from werkzeug.sansio.utils import host_is_trusted

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

_OURS = str(Path(__file__).parents[1])
LOCAL_HOSTS = ("127.0.0.1", "localhost")


def new_token() -> str:
    """A secret that nobody guesses."""
    return secrets.token_urlsafe(24)


class Guard:
    """Who is let in, and what every answer says to the browser."""

    def __init__(
        self,
        *,
        token: str,
        hosts: Sequence[str],
        prefix: str,
        script_hashes: Sequence[str],
    ) -> None:
        self._token = token
        self._prefix = prefix
        self._trusted = [*LOCAL_HOSTS, *hosts]
        # Two servers on one host share its cookies: their names must differ.
        self._cookie = f"fsdpdoctor-{hashlib.sha256(token.encode()).hexdigest()[:8]}"
        self.headers = {
            "Content-Security-Policy": _policy(script_hashes),
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "X-Frame-Options": "SAMEORIGIN",
            "Cross-Origin-Opener-Policy": "same-origin",
        }

    def protect(self, server: Flask) -> None:
        """Guard every route of a server, Dash's own included."""
        server.config["TRUSTED_HOSTS"] = self._trusted
        server.before_request(self._admit)
        server.after_request(self._harden)
        server.register_error_handler(Exception, _refuse)

    def plainly_admits(self, environ: WSGIEnvironment) -> bool:
        """Whether a request has the cookie and a host's name just as we gave them.

        Where it is False, `protect` may still let the request in.
        """
        host = environ.get("HTTP_HOST", "").rpartition(":")[0]
        if host not in self._trusted:
            return False
        for cookie in environ.get("HTTP_COOKIE", "").split("; "):
            name, _, held = cookie.partition("=")
            if name == self._cookie:
                return self._is_token(held)
        return False

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())

    def _admit(self) -> Response | None:
        if not host_is_trusted(request.headers.get("Host"), self._trusted):
            return Response("400: not a name of this server.", 400)
        given = request.args.get("token")
        if given is not None and self._is_token(given):
            return self._with_cookie()
        if self._is_token(request.cookies.get(self._cookie, "")):
            return None
        return Response(
            "403: open the address that `fsdpdoctor view` printed; it holds the token.",
            status=403,
            mimetype="text/plain",
        )

    def _harden(self, answer: Response) -> Response:
        answer.headers.update(self.headers)
        return answer

    def _with_cookie(self) -> Response:
        """The same address without the token, which then is in no history or log."""
        left = [
            (name, value) for name, value in request.args.items(True) if name != "token"
        ]
        # One slash in front, or the browser would take the path for a host.
        target = self._prefix + request.path.lstrip("/")
        if left:
            target += f"?{urlencode(left)}"
        answer = Response(status=303, headers={"Location": target})
        answer.set_cookie(
            self._cookie,
            self._token,
            httponly=True,
            samesite="Strict",
            path=self._prefix,
        )
        return answer


def _refuse(error: Exception) -> Response | HTTPException:
    """What Dash cannot make sense of is no request of these pages: it comes to none of
    our code. What fails in ours is written down, for it is a fault.
    """
    if isinstance(error, HTTPException):
        return error
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename.startswith(_OURS) for frame in frames):
        current_app.logger.error("%s failed", request.path, exc_info=error)
        return Response("500: this is a fault of ours.", 500, mimetype="text/plain")
    return Response("400: no request of these pages.", 400, mimetype="text/plain")


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
