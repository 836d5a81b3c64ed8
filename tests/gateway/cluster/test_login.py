from pathlib import Path

import pytest
from aiokafka.errors import KafkaError

from gateway.cluster.client import CredentialsError
from gateway.cluster.login import Login
from gateway.config.sasl import UpstreamSaslConfig

SCRAM = UpstreamSaslConfig(mechanism="SCRAM-SHA-512", username="weir", password_file="pw")
BEARER = UpstreamSaslConfig(mechanism="OAUTHBEARER", token_file="token")


def test_login_without_credentials_has_no_options(tmp_path: Path) -> None:
    login = Login(None, tmp_path)
    assert (login.has_credentials, login.options()) == (False, {})


def test_password_is_read_again_for_each_client(tmp_path: Path) -> None:
    login = Login(SCRAM, tmp_path)
    for password in ("first", "sécond "):
        (tmp_path / "pw").write_text(password + "\n")
        assert login.options() == {
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_plain_username": "weir",
            "sasl_plain_password": password,
        }


async def test_token_is_read_again_for_each_connection(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    options = Login(BEARER, tmp_path).options()
    assert options["sasl_mechanism"] == "OAUTHBEARER"
    provider = options["sasl_oauth_token_provider"]
    assert await provider.token() == "first"
    (tmp_path / "token").write_text("second\r\n")
    assert await provider.token() == "second"


async def test_missing_token_raises_an_aiokafka_error(tmp_path: Path) -> None:
    """Any other error ends aiokafka's task silently."""
    (tmp_path / "token").write_text("first")
    provider = Login(BEARER, tmp_path).options()["sasl_oauth_token_provider"]
    (tmp_path / "token").unlink()
    with pytest.raises(KafkaError, match=r"upstream\.sasl\.token_file: ") as caught:
        await provider.token()
    assert isinstance(caught.value, CredentialsError)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "a file that can't be read: No such file or directory"),
        (b"", "{path}, which is empty"),
        (b"\n", "{path}, which is empty"),
        (b"hunter2\nhunter3", "{path}, which has more than one line"),
        (b"hunter2\xff", "{path}, which is not UTF-8 text"),
    ],
)
def test_file_without_a_secret_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "pw"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CredentialsError) as caught:
        Login(SCRAM, tmp_path).options()
    assert str(caught.value).startswith(f"upstream.sasl.password_file: names {message.format(path=path)} — ")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("sasl", "mechanisms", "advice"),
    [
        (SCRAM, (), "require no SASL"),
        (SCRAM, ("PLAIN", "GSSAPI"), "the brokers offer PLAIN, GSSAPI"),
        (SCRAM, ("GSSAPI",), "the brokers offer GSSAPI alone, which Weir itself can't use — enable SCRAM-SHA-512"),
        (SCRAM, ("PLAIN", "SCRAM-SHA-512"), "refuse weir by SCRAM-SHA-512 — check upstream.sasl.username"),
        (BEARER, ("OAUTHBEARER",), "renew token (upstream.sasl.token_file)"),
    ],
)
def test_refused_credentials_come_with_advice(sasl: UpstreamSaslConfig, mechanisms: tuple[str, ...], advice: str) -> None:
    assert advice in Login(sasl, Path()).advice(mechanisms)
