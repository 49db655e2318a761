"""Keys, what they keep apart, and that they stay secret."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headway.config import ConfigError, ServerOptions
from headway.server.edge import KeyRing
from headway.server.errors import ApiError
from tests.engine.builders import ScriptedExecutor, echo
from tests.server.running import Gate, Running, serving

KEYS = ("first-secret-key", "second-secret-key")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        {"Authorization": "Bearer"},
        bearer(KEYS[0][:-1]),
        bearer(KEYS[0] + "x"),
        {"Authorization": KEYS[0]},
        {"Authorization": f"Basic {KEYS[0]}"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"X-Api-Key": KEYS[0]},
    ],
)
def test_without_a_key_nothing_is_answered(headers: Any) -> None:
    with serving(options={"api_key": KEYS}) as server:
        calls = [("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/openapi.json"), ("GET", "/nowhere")]
        for method, path in calls:
            answer = server.http.request(method, path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


def test_any_of_the_keys_opens_the_door() -> None:
    with serving(options={"api_key": KEYS}) as server:
        for key in KEYS:
            assert server.post("/v1/completions", {"prompt": "a"}, headers=bearer(key)).status_code == 200
            with server.openai(api_key=key) as client:
                assert client.completions.create(model="bytes", prompt="ab", max_tokens=2).choices[0].text == "ab"
        server.rest()


def test_every_key_is_compared_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr("headway.server.edge.hmac.compare_digest", compare)
    ring = KeyRing(KEYS)
    for given in (f"Bearer {KEYS[0]}", f"Bearer {KEYS[1]}", "Bearer x", "", None):
        compared.clear()
        if given in (f"Bearer {KEYS[0]}", f"Bearer {KEYS[1]}"):
            assert ring.owner(given)
        else:
            with pytest.raises(ApiError):
                ring.owner(given)
        assert len(compared) == len(KEYS)
        assert {len(digest) for pair in compared for digest in pair} == {32}


def test_owners_tell_keys_apart_and_nothing_of_them() -> None:
    ring, other_process = KeyRing(KEYS), KeyRing(KEYS)
    owners = [ring.owner(f"Bearer {key}") for key in KEYS]

    assert len(set(owners)) == 2
    assert owners[0] not in [other_process.owner(f"Bearer {key}") for key in KEYS]
    assert KeyRing(()).owner("Bearer whatever") == ""


def cached(server: Running, key: str, **fields: Any) -> int:
    """Cached prompt tokens of one call."""
    body = {"prompt": "a prompt that two tenants share", "max_tokens": 1, **fields}
    usage = server.post("/v1/completions", body, headers=bearer(key)).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_salts_keep_prefixes_apart_in_pairs() -> None:
    with serving() as server:
        hits = [cached(server, "none", cache_salt=salt) > 0 for salt in ("A", "A", "B", "")]

    assert hits == [False, True, False, False]


def test_keys_share_prefixes_unless_isolated() -> None:
    first, second = KEYS
    with serving(options={"api_key": KEYS}) as server:
        assert [cached(server, key) > 0 for key in (first, first, second)] == [False, True, True]
    with serving(options={"api_key": KEYS, "cache_isolation": True}) as server:
        assert [cached(server, key) > 0 for key in (first, first, second, second)] == [False, True, False, True]
        assert [cached(server, key, cache_salt="s") > 0 for key in (first, first, second)] == [False, True, False]


def test_a_salt_cannot_be_made_to_look_like_another_keys() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), options={"api_key": KEYS, "cache_isolation": True}) as server:
        calls = [
            server.connect("/v1/completions", {"prompt": "a"}, headers=f"Authorization: Bearer {key}\r\n")
            for key in KEYS
        ]
        server.until(lambda: len(server.service.calls) == 2)
        owners = {call.owner for call in server.service.calls.values()}
        gate.open()
        for call in calls:
            call.recv(12)
            call.close()
        server.rest()
        for owner in owners:
            cached(server, KEYS[0])
            assert cached(server, KEYS[1], cache_salt=f"{owner}/") == 0
            assert cached(server, KEYS[1], cache_salt=f"../{owner}/") == 0


def test_a_call_can_be_aborted_with_its_own_key_only() -> None:
    gate = Gate()
    with serving(ScriptedExecutor(echo, during=gate), options={"api_key": KEYS}) as server:
        head = f"Authorization: Bearer {KEYS[0]}\r\nX-Request-Id: mine\r\n"
        call = server.connect("/v1/completions", {"prompt": "a"}, headers=head)
        gate.wait()

        assert server.post("/v1/abort/mine", headers=bearer(KEYS[1])).status_code == 404
        assert server.post("/v1/abort/mine").status_code == 401
        assert server.post("/v1/abort/mine", headers=bearer(KEYS[0])).status_code == 200
        gate.open()
        assert b'"finish_reason":"abort"' in call.recv(4096)
        call.close()
        server.rest()


def test_keys_are_in_no_log_line_and_no_message(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "a-wrong-secret-key"
    with serving(options={"api_key": KEYS, "access_log": True}) as server:
        for key in (*KEYS, wrong):
            server.post("/v1/completions", {"prompt": "a"}, headers=bearer(key))
            server.post("/v1/completions", {"prompt": "a", "n": -1}, headers=bearer(key))
            assert not any(secret in server.http.get("/nowhere", headers=bearer(key)).text for secret in (*KEYS, wrong))
        server.rest()

    lines = [record.getMessage() + repr(vars(record)) for record in caplog.records]
    assert any("/v1/completions" in line for line in lines)
    assert not any(secret in line for line in lines for secret in (*KEYS, wrong))


def test_options_do_not_show_keys() -> None:
    assert "secret" not in repr(ServerOptions(api_key=KEYS))
    for bad in ("secret with space", "secret\u00e9"):
        with pytest.raises(ConfigError) as caught:
            ServerOptions(api_key=(bad,))
        assert "secret" not in str(caught.value)
