"""`weir explain`: the quotas of one client, from a config file or a running gateway."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Final

from gateway.command_parser import DEFAULT_ADMIN, url
from gateway.config.document import read_document
from gateway.config.load import parse_config, read_config_text
from gateway.quotas.addresses import address_of
from gateway.quotas.entity import ANONYMOUS

_ABOUT = """\
Shows the quotas of one client. Each quota has the value that applies, its entity, and its place in the file. Overruled
values have a reason. The client's group, exemptions, limits on connections, topic quotas and volume quotas are shown as
well.

With --config it reads the file and makes no connections. Otherwise it asks a running gateway, which also knows the
current use and the quotas of the quota API (kafka-configs.sh).

examples:
  weir explain --config weir.yaml --user alice --client-id etl --ip 10.0.0.7
  weir explain --config weir.yaml --user alice --client-id job-7 --claim groups=payments
  weir explain --config weir.yaml --user alice --catch-up
  weir explain --admin http://127.0.0.1:9644 --user alice --client-id etl --json
"""

_NOT_IN_THE_FILE: Final = (
    "Quotas that were set through the quota API are not in the file, and replace its values: give --admin in place of --config."
)


def add_explain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    explain = commands.add_parser(
        "explain",
        help="show which quotas apply to a client",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = explain.add_mutually_exclusive_group()
    source.add_argument("--config", type=Path, metavar="FILE", help="a config file, such as weir.yaml, in place of a gateway")
    source.add_argument(
        "--admin", "--url", type=url, default=DEFAULT_ADMIN, metavar="URL", help=f"of the gateway ({DEFAULT_ADMIN})"
    )
    explain.add_argument("--user", default=ANONYMOUS, metavar="NAME", help=f"the principal's name (default: {ANONYMOUS})")
    explain.add_argument("--client-id", default="", metavar="NAME", help="the client-id (default: an empty one)")
    explain.add_argument(
        "--ip", type=_ip, metavar="ADDRESS", help="the client's address, for quotas of addresses and groups by network"
    )
    explain.add_argument(
        "--claim", type=_claim, action="append", default=[], metavar="NAME=VALUE",
        help="a claim of the client's OAUTHBEARER token, for groups; may be repeated",
    )  # fmt: skip
    explain.add_argument(
        "--catch-up", action="store_true", help="a consumer that reads far behind the end of the log, for groups"
    )
    explain.add_argument("--json", action="store_true", help="print the answer as JSON")
    explain.set_defaults(run=_run, parser=explain)


def _run(options: argparse.Namespace) -> int:
    # Rich is imported here, so that other commands start without it.
    from gateway.admin.admin_client import AdminUnreachableError
    from gateway.admin.explain_table import ask_explanation, print_explanation
    from gateway.admin.explanation import ClientNames, Explanations
    from gateway.admin.table import stdout_console
    from gateway.config.places import Places

    client = ClientNames(options.user, options.client_id, options.ip or "", tuple(options.claim), options.catch_up)
    if options.config is None:
        try:
            answer = asyncio.run(ask_explanation(options.admin, client))
        except AdminUnreachableError as error:
            print(f"{error}\nwithout a gateway: weir explain --config FILE", file=sys.stderr)
            return 1
    else:
        text = read_config_text(options.config)
        config = parse_config(text, source=str(options.config))
        lines = read_document(text, source=str(options.config)).lines
        answer = Explanations(Places(config, str(options.config), lines), {}).of(client)
        if config.quota_admins:
            answer["notes"].append(_NOT_IN_THE_FILE)
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        print_explanation(answer, stdout_console())
    return 0


def _claim(text: str) -> str:
    if not all(text.partition("=")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a claim such as groups=payments")
    return text


def _ip(text: str) -> str:
    try:
        return str(address_of(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an IP address such as 10.0.0.7") from None
