"""SASL: the strongest mechanism, no downgrade, and a server that must prove itself."""

import pickle

import pytest
from scramp import ScramClient

from dcp.errors import AuthenticationError
from dcp.protocol.credentials import (
    ALL_MECHANISMS,
    MOST_SALTED,
    SCRAM_MECHANISMS,
    Credentials,
    Secret,
)
from dcp.protocol.sasl import SCRAMP_NAMES, SaslExchange, choose_mechanism

# RFC 5802, section 5.
RFC_USER, RFC_PASSWORD, RFC_NONCE = "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL"
RFC_CHALLENGE = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
RFC_FINAL = b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ="


def exchange(password: str = RFC_PASSWORD) -> SaslExchange:
    credentials = Credentials(RFC_USER, Secret(password))
    return SaslExchange.start("SCRAM-SHA1", credentials, RFC_NONCE)


def test_the_exchange_of_the_rfc() -> None:
    first = exchange()
    assert first.payload == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    second = first.answer(RFC_CHALLENGE)
    assert second.payload == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    second.verify(RFC_FINAL)


def test_steps_do_not_change_the_exchange_they_start_from() -> None:
    first = exchange()
    second = first.answer(RFC_CHALLENGE)
    assert first.answer(RFC_CHALLENGE).payload == second.payload
    second.verify(RFC_FINAL)
    second.verify(RFC_FINAL)


@pytest.mark.parametrize("mechanism", SCRAM_MECHANISMS)
@pytest.mark.parametrize("password", ["pencil", "p\u00e4ss word\u2163"])
def test_our_proof_is_scramps(mechanism: str, password: str) -> None:
    library = ScramClient([SCRAMP_NAMES[mechanism]], "us=er,\u00e9", password, c_nonce="nonce")
    ours = SaslExchange.start(mechanism, Credentials("us=er,\u00e9", Secret(password)), "nonce")
    assert ours.payload.decode() == library.get_client_first()
    challenge = "r=nonceserver,s=QSXCR+Q6sek8bf92,i=4097"
    library.set_server_first(challenge)
    assert ours.answer(challenge.encode()).payload.decode() == library.get_client_final()


def test_a_password_is_salted_once_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[bytes] = []

    def derives(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        derived.append(b"%b %b %b %d" % (name.encode(), password, salt, iterations))
        return derived[-1]

    monkeypatch.setattr("dcp.protocol.credentials.pbkdf2_hmac", derives)
    salted = Credentials("u", Secret("p")).salted
    asked = [
        ("sha1", b"p", b"s", 4096),
        ("sha256", b"p", b"s", 4096),
        ("sha1", b"q", b"s", 4096),
        ("sha1", b"p", b"t", 4096),
        ("sha1", b"p", b"s", 4097),
    ]
    assert len({salted(*one) for one in asked * 3}) == len(derived) == len(asked)
    for salt in range(10 * MOST_SALTED):  # a server that never tells the same salt
        salted("sha1", b"p", b"%d" % salt, 4096)
    count = len(derived)
    for salt in range(9 * MOST_SALTED, 10 * MOST_SALTED):
        salted("sha1", b"p", b"%d" % salt, 4096)
    assert len(derived) == count
    salted("sha1", b"p", b"%d" % (9 * MOST_SALTED - 1), 4096)
    assert len(derived) == count + 1


def test_credentials_show_nothing_and_go_to_no_other_process() -> None:
    credentials = Credentials("u", Secret("pencil"))
    credentials.salted("sha1", b"pencil", b"salt", 4096)
    assert "pencil" not in repr(credentials) and "salt" not in repr(credentials)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="a secret stays in its process"):
            pickle.dumps(credentials, protocol)


@pytest.mark.parametrize(
    "final",
    [b"v=AAAApqV8S7suAoZWja4dJRkFsKQ=", b"", b"v=", b"nonsense", b"e=other-error", b"\xff\xfe"],
)
def test_a_server_that_cannot_prove_itself_is_refused(final: bytes) -> None:
    with pytest.raises(AuthenticationError, match="did not prove"):
        exchange().answer(RFC_CHALLENGE).verify(final)


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=somebodyelse3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",  # another nonce
        b"r=fyko+d2lbbFgONRv9qkxdawL,s=QSXCR+Q6sek8bf92,i=4096",  # the server added nothing
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfc,s=QSXCR+Q6sek8bf92,i=1",  # a password for the taking
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfc,s=QSXCR+Q6sek8bf92,i=3999",
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfc,s=QSXCR+Q6sek8bf92,i=99999999999",
        b"r=fyko+d2lbbFgONRv9qkxdawL3rfc,i=4000",
        b"",
        b"\xff",
    ],
)
def test_bad_challenges_are_refused(challenge: bytes) -> None:
    with pytest.raises(AuthenticationError, match="challenge"):
        exchange().answer(challenge)


def test_4000_iterations_are_what_older_couchbase_servers_ask_for() -> None:
    answer = exchange().answer(RFC_CHALLENGE.replace(b"4096", b"4000")).payload
    assert answer.startswith(b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=")
    assert answer != exchange().answer(RFC_CHALLENGE).payload


@pytest.mark.parametrize(
    ("offered", "allowed", "chosen"),
    [
        (b"SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN", ALL_MECHANISMS, "SCRAM-SHA512"),
        (b"PLAIN SCRAM-SHA1 SCRAM-SHA256", ALL_MECHANISMS, "SCRAM-SHA256"),
        (b"PLAIN SCRAM-SHA1", SCRAM_MECHANISMS, "SCRAM-SHA1"),
        (b"OAUTHBEARER PLAIN", ALL_MECHANISMS, "PLAIN"),
        (b"SCRAM-SHA512 SCRAM-SHA1", ("SCRAM-SHA1",), "SCRAM-SHA1"),
    ],
)
def test_the_strongest_common_mechanism(
    offered: bytes, allowed: tuple[str, ...], chosen: str
) -> None:
    assert choose_mechanism(offered, allowed) == chosen


@pytest.mark.parametrize("offered", [b"PLAIN", b"", b"OAUTHBEARER", b"\xff\xff"])
def test_a_downgrade_to_plain_does_not_get_the_password(offered: bytes) -> None:
    with pytest.raises(AuthenticationError, match="expected one of SCRAM-SHA512"):
        choose_mechanism(offered, SCRAM_MECHANISMS)


def test_plain_is_one_message_without_a_challenge() -> None:
    plain = SaslExchange.start("PLAIN", Credentials("u", Secret("p"), ("PLAIN",)), "unused")
    assert plain.payload == b"\0u\0p"
    plain.verify(b"")
    with pytest.raises(AuthenticationError, match="expected none"):
        plain.answer(b"anything")


def test_what_sasl_cannot_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(AuthenticationError, match="NUL") as caught:
        SaslExchange.start("PLAIN", Credentials("u", Secret("hid\0den"), ("PLAIN",)), "n")
    assert "hid" not in str(caught.value)
    with pytest.raises(AuthenticationError, match="SCRAM-SHA1"):
        SaslExchange.start("SCRAM-SHA1", Credentials("u", Secret("p")), "with,comma")


def test_payloads_do_not_show_in_a_repr() -> None:
    assert "pencil" not in repr(exchange())
    assert "v0X8v3Bz" not in repr(exchange().answer(RFC_CHALLENGE))
