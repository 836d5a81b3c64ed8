"""Nobody looks at a certificate until it has expired: the gateway says when that is."""

import time

import pytest

from loadtest.testkit.certificates import DAY, LOOPBACK, Authority
from tests.weir_process import wait_until

METRIC = "weir_tls_certificate_expiry_timestamp_seconds"


def days_left(weir, key: str) -> float:
    return (weir.metric(METRIC, config_key=f"listeners[clients].tls.{key}") - time.time()) / DAY.total_seconds()


@pytest.mark.parametrize("workers", [1, 2])
def test_expiry_is_that_of_the_certificate_in_use(workers, broker, start_weir, tmp_path):
    authority = Authority(tmp_path / "pki")
    files = authority.issue("first", LOOPBACK, valid=(-DAY, 5 * DAY))
    tls = {"cert": str(files.cert), "key": str(files.key), "client_ca": str(authority.cert), "client_auth": "requested"}
    sharing = {"workers": workers} if workers > 1 else {}
    weir = start_weir(broker.bootstrap_servers, listener={"tls": tls}, **sharing)
    assert days_left(weir, "cert") == pytest.approx(5, abs=0.1)
    assert days_left(weir, "client_ca") == pytest.approx(30, abs=0.1)
    files.cert.write_bytes(authority.issue("other", LOOPBACK, valid=(-DAY, 9 * DAY)).cert.read_bytes())
    wait_until(lambda: weir.metric("weir_tls_reloads_total", result="failure") > 0, "a half of the new files is refused")
    assert days_left(weir, "cert") == pytest.approx(5, abs=0.1)
    files.replace_with(authority.issue("second", LOOPBACK, valid=(-DAY, 20 * DAY)))
    wait_until(lambda: days_left(weir, "cert") > 19, "the new certificate is in use")
