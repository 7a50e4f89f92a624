"""Where a value ends that stands behind a secret's name, and where passwords stand
without one.
"""

from __future__ import annotations

import time

import pytest

from fsdpdoctor.redact import HIDDEN, MOST_TEXT, command, known_secrets, text
from fsdpdoctor.redact.secret_values import values_in

FORM = "https%3A%2F%2Fme%3Aqwertz%40host"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        # Calls, brackets within brackets, and what is added
        ("C(pw=Secret('a b'), n=3)", f"C(pw={HIDDEN}, n=3)"),
        ("secrets={'a': 'b', 'c': {'d': 'e'}, 'f': 'g'}; n", f"secrets={HIDDEN}; n"),
        ("api_keys=[{'k': ['a)']}, 'b'], n=3", f"api_keys={HIDDEN}, n=3"),
        ("password=x.get('y', 'z').strip() or 3", f"password={HIDDEN} or 3"),
        ("password='a' + 'b'; c", f"password='{HIDDEN}'; c"),
        # What stands for it otherwise
        (
            "t = os.getenv('HF_TOKEN') or 'a'",
            f"t = os.getenv('HF_TOKEN') or '{HIDDEN}'",
        ),
        ("token = e['T'] or 'a'; n", f"token = {HIDDEN}; n"),
        ("f(max_tokens or 'a')", "f(max_tokens or 'a')"),
        ("t(token='a' if n else 'b', n=3)", f"t(token='{HIDDEN}', n=3)"),
        ("token = e['T'] if 'T' in e else 'a'; n", f"token = {HIDDEN}; n"),
        ("if token != 'a': n", f"if token != '{HIDDEN}': n"),
        ("self.token: str = 'a'; n", f"self.token: {HIDDEN}; n"),
        ("f(pw: Optional[str] = 'a', n=3)", f"f(pw: {HIDDEN}, n=3)"),
        ("f(pw: str | None = 'a', n=3)", f"f(pw: {HIDDEN}, n=3)"),
        ("password: a, user='b'", f"password: {HIDDEN}, user='b'"),
        # Columns, and commands that take a name
        ("| password | abc |", f"| password | {HIDDEN} |"),
        ("API_KEY\tabc", f"API_KEY\t{HIDDEN}"),
        ("setx API_KEY abc & dir", f"setx API_KEY {HIDDEN} & dir"),
        ("set -gx HF_TOKEN abc", f"set -gx HF_TOKEN {HIDDEN}"),
        ("the set API_KEY abc", "the set API_KEY abc"),
        # Options of programs, and addresses with blanks
        ("mysqldump -h h -phunter db", f"mysqldump -h h -p{HIDDEN} db"),
        ("gcc -pthread x.c | mysql -e q", "gcc -pthread x.c | mysql -e q"),
        ("curl -b 'session=abc; n=3' h", f"curl -b 'session={HIDDEN}; n=3' h"),
        ("Loader(pin_memory=True, pin=1234)", f"Loader(pin_memory=True, pin={HIDDEN})"),
        ("postgres://me:a b@h/d", f"postgres://me:{HIDDEN}@h/d"),
        ("http://a:b for c@d.de", "http://a:b for c@d.de"),
        ("password=a+'b'; c", f"password={HIDDEN}; c"),
        ("password='a' 'b', c='d'", f"password='{HIDDEN}', c='d'"),
        ('password="""a\nb""" + c', f'password="""{HIDDEN}"""'),
        ("password=(a, 'b", f"password={HIDDEN}"),
        # Other signs
        ("HF_TOKEN -> abc", f"HF_TOKEN -> {HIDDEN}"),
        ("token:: abc", f"token:: {HIDDEN}"),
        ("token (qwertz99) expired", f"token {HIDDEN} expired"),
        # A name and a value apart
        (
            "{'name': 'DB_PASSWORD', 'value': 'a'}",
            f"{{'name': 'DB_PASSWORD', 'value': '{HIDDEN}'}}",
        ),
        ("{'name': 'lr', 'value': 'a'}", "{'name': 'lr', 'value': 'a'}"),
        (
            "- name: DB_PASSWORD\n  value: a\n- name: N\n  value: b",
            f"- name: DB_PASSWORD\n  value: {HIDDEN}\n- name: N\n  value: b",
        ),
        (
            "argument --api-key: invalid int value: 'a'",
            f"argument --api-key: {HIDDEN} int value: {HIDDEN}",
        ),
        ("<password>a b</password>", f"<password>{HIDDEN}</password>"),
        ("<title>a b</title>", "<title>a b</title>"),
        # Files and command lines
        ("machine h login me password a", f"machine h login me password {HIDDEN}"),
        ("h:5432:db:me:qwertz", f"h:5432:db:me:{HIDDEN}"),
        ("sv=2020&sig=a&n=3", f"sv=2020&sig={HIDDEN}&n=3"),
        ("'curl -u me:a https://h' failed", f"'curl -u me:{HIDDEN} https://h' failed"),
        ("['curl', '-u', 'me:a', 'h']", f"['curl', '-u', 'me:{HIDDEN}', 'h']"),
        ("curl --user https://h/x", "curl --user https://h/x"),
        ("mysql -uroot -pQwertz9 db", f"mysql -uroot -p{HIDDEN} db"),
        ("7z x -pletters a.7z", f"7z x -p{HIDDEN} a.7z"),
        ("unrar x -pletters a.rar", f"unrar x -p{HIDDEN} a.rar"),
        ("rar a -hpletters a.rar", f"rar a -hp{HIDDEN} a.rar"),
        ("openssl enc -aes256 -k letters -d", f"openssl enc -aes256 -k {HIDDEN} -d"),
        (
            "openssl rsa -passin pass:abc -in k",
            f"openssl rsa -passin pass:{HIDDEN} -in k",
        ),
        ("xfreerdp /u:me /p:letters /v:h", f"xfreerdp /u:me /p:{HIDDEN} /v:h"),
        ("curl -k https://h/p:1", "curl -k https://h/p:1"),
        ("patch -p1 of -passive", "patch -p1 of -passive"),
        (
            '[{"name": "DB_PASSWORD", "type": "str", "value": "a b"}]',
            f'[{{"name": "DB_PASSWORD", "type": "str", "value": "{HIDDEN}"}}]',
        ),
        ("set_password('me', 'a b')", f"set_password('{HIDDEN}', '{HIDDEN}')"),
        ("is_key('me')", "is_key('me')"),
        ("redis-cli -h h -a a1", f"redis-cli -h h -a {HIDDEN}"),
        (
            "aws configure set secret_access_key a",
            f"aws configure set secret_access_key {HIDDEN}",
        ),
        # YAML
        ("secret: |\n  a\n  b\nlr: 1", f"secret: {HIDDEN}\nlr: 1"),
        ("passwords:\n - a\n - b\nlr: 1", f"passwords:\n {HIDDEN}\nlr: 1"),
        ("password: yes\nlr: 1", "password: yes\nlr: 1"),
        # What colours are between
        ("\x1b[1mpassword\x1b[0m: \x1b[31ma b1\x1b[0m", f"password: {HIDDEN} b1"),
        # Refusals
        ("password must be bytes, got 'a b'", f"password must be bytes, got {HIDDEN}"),
        (
            "1 error for A api_key is no URL [type=url, input_value='a', n=b]",
            f"1 error for A api_key is no URL [type=url, input_value={HIDDEN}, n=b]",
        ),
        ("shape must be a tuple, got 'a b'", "shape must be a tuple, got 'a b'"),
        ("Password for me: a", f"Password for me: {HIDDEN}"),
        ("password (a-b) rejected", f"password {HIDDEN} rejected"),
        # Addresses
        ("//me:a@h/x", f"//{HIDDEN}@h/x"),
        (r"http:\/\/me:a@h\/x", rf"http:\/\/{HIDDEN}@h\/x"),
        ("connect me/a@//h:1521/XE", f"connect me/{HIDDEN}@//h:1521/XE"),
        (
            "steps 1:20@3, cosine:1000@0.1, cuda:0@node",
            "steps 1:20@3, cosine:1000@0.1, cuda:0@node",
        ),
        # Within an address
        (f"next={FORM}, n", HIDDEN + " n"),
        ("50%20of%3Dall", "50%20of%3Dall"),
    ],
)
def test_values_in_a_text(words: str, shown: str) -> None:
    """Hidden whole, and what stands behind it is kept; read again it stays so."""
    assert text(words, ()) == shown
    assert text(shown, ()) == shown


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["-u", "me:a"], ["-u", f"me:{HIDDEN}"]),
        (["--proxy-user", "me:a"], ["--proxy-user", f"me:{HIDDEN}"]),
        (["--token:", "a"], ["--token:", HIDDEN]),
        (["--tokens.hf", "a", "--tokens.max"], ["--tokens.hf", HIDDEN, "--tokens.max"]),
        (["sshpass", "-p", "a", "ssh"], ["sshpass", "-p", HIDDEN, "ssh"]),
        (["--use-auth-token", "true"], ["--use-auth-token", "true"]),
        (["--use_auth_token=False"], ["--use_auth_token=False"]),
        (
            ["--target-modules", "query", "key", "value", "dense"],
            ["--target-modules", "query", "key", "value", "dense"],
        ),
        (["--metrics", "pass", "fail"], ["--metrics", "pass", "fail"]),
        (["login", "password", "a"], ["login", "password", HIDDEN]),
        (["--mfa-code", "183204"], ["--mfa-code", HIDDEN]),
        (["--ak", "a", "--sk", "b"], ["--ak", HIDDEN, "--sk", HIDDEN]),
        (
            ['{"args": ["--password", "a", "--lr", "1"]}'],
            [f'{{"args": ["--password", "{HIDDEN}", "--lr", "1"]}}'],
        ),
        (
            ['[{"name": "X-Api-Key", "value": "a"}]', '[{"name": "n", "value": "b"}]'],
            [
                f'[{{"name": "X-Api-Key", "value": "{HIDDEN}"}}]',
                '[{"name": "n", "value": "b"}]',
            ],
        ),
    ],
)
def test_values_on_a_command_line(argv: list[str], shown: list[str]) -> None:
    """Behind options, and in lists of arguments within JSON."""
    assert command(argv) == tuple(shown)


def test_what_is_named_within_a_variable_is_known() -> None:
    """JSON, connection strings, headers and .netrc; short words and code are not."""
    variables = {
        "CONFIG": '{"db": {"password": "swordfish", "pass": "short"}}',
        "AZURE": "AccountName=n;AccountKey=longenough==",
        "HEADER": "Authorization: Bearer abcdefgh",
        "NETRC": "machine h login me password hunter2hunter2",
        "LOGIN_FUNCTION": "token=$SOMETHING; echo done",
    }

    assert set(known_secrets(["-u", "me:p4ss"], variables)) == {
        "swordfish",
        "longenough==",
        "abcdefgh",
        "hunter2hunter2",
        "p4ss",
    }


def test_what_is_hidden_is_told() -> None:
    """`values_in` has the values themselves, without their quotes."""
    assert list(values_in("a='b' token='c d', -u e:f")) == ["c d", "f"]


@pytest.mark.parametrize(
    "piece",
    [
        *("a", "http://", "a://b:", "a.b-", "password=(", "password='a'+", "'\\"),
        *(
            "%25",
            "<a>",
            "-u a:",
            "token ",
            "a:1:",
            "login ",
            "mysql -x ",
            "openssl -k",
            " /p:",
            "token|",
        ),
        *(
            "postgres://u:a b ",
            "password\t",
            "get('TOKEN') or ",
            "setx ",
            "x or 'y' or ",
            "secret: |\n a",
            "secret: |\n",
            "passwords:\n - a\n",
            "set_password('a', ",
            "set_password(",
            "password x ",
            "password's ",
            "a/b@",
            "//a:",
            '"name": "a", "type": "b", ',
            "redis-cli ",
            "a-b_",
            "\x1b[1",
        ),
    ],
)
def test_bounded_time(piece: str) -> None:
    """No text of the longest that is looked at takes a second: it was nine."""
    words = piece * (MOST_TEXT // len(piece))
    begin = time.process_time()
    text(words, ())

    assert time.process_time() - begin < 1
