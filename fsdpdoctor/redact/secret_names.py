"""Which names say that what stands behind them is a secret.

`docs/secrets.md` is this rule in words. Standard library only: the recorder uses it.
"""

from __future__ import annotations

import re
from functools import lru_cache


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALWAYS = (
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "credential",
    "apikey",
    "accesskey",
    "authkey",
    "privatekey",
    "signingkey",
    "encryptionkey",
    "accountkey",
    "storagekey",
    "authtoken",
    "accesstoken",
    "refreshtoken",
    "authorization",
    "sessionid",
    "connectionstring",
    "connstr",
    "accesssignature",
    "sessiontoken",
    "licensekey",
    "licencekey",
    "masterkey",
    "mnemonic",
    "seedphrase",
    "sshpass",
    "userpass",
    "dbpass",
    "rootpass",
    "adminpass",
    "userpwd",
    "dbpwd",
    "rootpwd",
    "rootpw",
    "passwort",
    "kennwort",
    "motdepasse",
    "contrasena",
    "wachtwoord",
)
"""Anywhere in a name, however it is spelled."""

_WORDS = _words(
    """
    key token auth pass pwd pw pswd passw cred creds bearer cookie cookies
    jwt sas dsn otp totp mfa pat psk hmac webhook senha geheim
    """
)
"""Whole words of a name."""

_LAST = _words("pin pincode sessid sid phpsessid jsessionid ak sk")
"""As a name's last word: `--pin` is a secret, `pin_memory` is not."""

_OF_SOMETHING = "login"
"""`wandb_login` is a secret; behind `--login` alone is a name."""

_PLURALS = frozenset({"keys", "tokens"})
_OF_PLURALS = _words(
    """
    api access auth secret private ssh refresh hf github wandb user
    session
    """
)
"""`api_keys` and `tokens.hf` are secrets; `max_tokens` and `state_keys` are not."""

_HARMLESS_BEFORE = {
    "token": _words(
        """
    pad eos bos unk sep cls mask image audio video special num max min per
    n next start end decoder prompt first last
    """
    ),
    "key": _words(
        """
    sort state batch group label text image audio input output target
    feature column prompt question answer num n missing unexpected query
    value kv d metric monitor dataset primary partition foreign public
    """
    ),
    "pass": _words(
        """
    forward backward num n first second third single multi one two
    """
    ),
}
_HARMLESS_AFTER = _words(
    """
    value values dim dims head heads size len length count ids type types
    ratio dropout error exception bias proj projection query masking
    padding embedding embeddings rate loss losses weight weights norm init
    dtype mixing budget step steps layer layers prefix suffix mode k dir
    file path
    """
)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LONGEST = 200
"""Longer runs of letters are no names."""


def is_always_secret(name: str) -> bool:
    """Whether a name says so by itself, behind no option's dashes, too: `key` and
    `value` may as well be two names of a list.
    """
    joined = re.sub(r"[^a-z]", "", name[:_LONGEST].lower())
    return any(word in joined for word in _ALWAYS)


@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Whether a value of this name is hidden."""
    if len(name) > _LONGEST:
        return False
    if is_always_secret(name):
        return True
    words = [part.lower() for part in _PARTS.findall(name)]
    return any(_says_secret(words, at) for at in range(len(words)))


def _says_secret(words: list[str], at: int) -> bool:
    word = words[at]
    before = words[at - 1] if at else ""
    after = words[at + 1] if at + 1 < len(words) else ""
    if word in _PLURALS:
        return before in _OF_PLURALS or after in _OF_PLURALS
    if word == _OF_SOMETHING:
        return bool(before) and not after
    if word in _LAST:
        return not after
    if word not in _WORDS:
        return False
    harmless = _HARMLESS_BEFORE.get(word, frozenset())
    return before not in harmless and (after not in _HARMLESS_AFTER)
