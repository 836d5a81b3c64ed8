"""The options and the help of `weir init`, `weir quotas import`, `weir quotas lift` and `weir quotas restore`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.command_parser import url
from gateway.terminal_text import printable
from gateway.whole_number import whole_number

RESTORE_FILE: Final = Path("weir-quotas-restore.json")

_IMPORT = """\
Reads the brokers' own quotas (kafka-configs) and prints them as `quotas.entities` of a config file. It changes
nothing. Rows that only the config has stay in the list. The output is YAML; differences are comments in it.

Kafka grants byte rates and connection rates at each broker. Weir grants its limits in the whole cluster, so import
multiplies them by the number of brokers. With `quotas.scope: broker` in the config, Weir grants them at each broker,
and import copies the figures. One controller counts partition mutations: their rate stays the same in any case.
Weir can't measure request_percentage: it stays at the brokers. SCRAM users are not quotas, and stay as they are.
"""

_IMPORT_EXAMPLE = """\
example:
  weir quotas import --config weir.yaml --bootstrap-server broker1:9092 > quotas.yaml
  # Quotas of cluster 4L6g3nShT-eMCtK--X86sw with 3 live brokers (id 0, 1, 2).
  # Compared with weir.yaml: 1 added, 0 changed, 0 the same, 0 only in the config
  #   + user=alice: producer_byte_rate 3145728 (3.00 MiB/s; 1048576 x 3 brokers)
  quotas:
    entities:
      - {user: alice, producer_byte_rate: 3145728}  # 1048576 x 3 brokers
"""

_LIFT = """\
Removes quotas from the brokers that Weir enforces. First it writes the restore file, which only its owner may read.

It refuses if the config does not have a limit for each entity that is at least as low, or if quotas.enforce is
false. It leaves request_percentage and other quotas that Weir has no equivalent for. A quota that is gone already is
no error. `--dry-run` asks the brokers if they would accept the change, and changes nothing.

Clients that still connect to the brokers directly have no quota after the lift.
"""

_LIFT_EXAMPLE = """\
examples:
  weir quotas lift --config weir.yaml --bootstrap-server broker1:9092 --dry-run
  weir quotas lift --config weir.yaml --bootstrap-server broker1:9092 --admin http://127.0.0.1:9644 --yes
"""

_RESTORE = """\
Puts the quotas of a restore file back at the brokers. Run it before you take Weir out of the path.

It refuses if the brokers' quotas have changed since the lift, and lists the changes. --force sets the file's quotas
in any case. Quotas that are back already are left alone, so the command may be repeated. It connects to the brokers of
the lift, unless --bootstrap-server names others. The restore file has no credentials.
"""

_RESTORE_EXAMPLE = """\
examples:
  weir quotas restore weir-quotas-restore.json --dry-run
  weir quotas restore weir-quotas-restore.json --command-config admin.properties
"""


_INIT = """\
Asks a broker for its cluster, and writes a first config file with comments. The file has the brokers' addresses, the
TLS and SASL settings of --command-config, and ports that are free on this host. It limits no client. Nothing changes
at the brokers, and no file is overwritten. A password goes into a file of its own beside the config file.
"""

_INIT_EXAMPLE = """\
examples:
  weir init --bootstrap-server broker1:9092
  weir init --bootstrap-server broker1:9093 --command-config client.properties --advertised-host weir.example.com
"""


def add_init(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `weir init`."""
    layout = argparse.RawDescriptionHelpFormatter
    init = commands.add_parser(
        "init",
        help="write a first config file for a running cluster",
        description=_INIT,
        epilog=_INIT_EXAMPLE + _properties_help(),
        formatter_class=layout,
    )
    init.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="a broker; several with commas")
    init.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="a properties file with the TLS and SASL settings (default: plaintext)",
    )
    init.add_argument("--out", type=Path, default=Path("weir.yaml"), metavar="FILE", help="the new file (default: weir.yaml)")
    init.add_argument(
        "--advertised-host", metavar="HOST",
        help="this host's name for clients; the listener then binds all addresses (default: only clients on this host)",
    )  # fmt: skip
    init.set_defaults(run=_run(_init), parser=init)


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the three commands below `weir quotas`."""
    layout = argparse.RawDescriptionHelpFormatter
    keys = _properties_help()
    read = commands.add_parser(
        "import", help="print the brokers' quotas as a config", description=_IMPORT, epilog=_IMPORT_EXAMPLE + keys,
        formatter_class=layout,
    )  # fmt: skip
    lift = commands.add_parser(
        "lift",
        help="remove the quotas from the brokers",
        description=_LIFT,
        epilog=_LIFT_EXAMPLE + keys,
        formatter_class=layout,
    )
    restore = commands.add_parser(
        "restore", help="put lifted quotas back", description=_RESTORE, epilog=_RESTORE_EXAMPLE + keys, formatter_class=layout
    )
    for command in (read, lift):
        command.add_argument("--config", type=Path, required=True, metavar="FILE", help="the config file, such as weir.yaml")
        command.add_argument(
            "--brokers", type=_count, metavar="N", help="the number of all brokers, if some are down (default: the live ones)"
        )
    restore.add_argument("file", type=Path, metavar="FILE", help="the file that `weir quotas lift` wrote")
    restore.add_argument("--config", type=Path, metavar="FILE", help="the config file, for its upstream.tls and upstream.sasl")
    restore.add_argument("--force", action="store_true", help="restore although quotas have changed since the lift")
    lift.add_argument(
        "--restore-file", type=Path, default=RESTORE_FILE, metavar="FILE", help=f"a new file (default: {RESTORE_FILE})"
    )
    lift.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    lift.add_argument(
        "--admin", dest="admins", type=url, action="append", default=[], metavar="URL",
        help="also compare the config that the gateway at this admin address runs with; may be repeated",
    )  # fmt: skip
    for command in (read, lift, restore):
        default = "those of the lift" if command is restore else "upstream.bootstrap_servers"
        command.add_argument(
            "--bootstrap-server", metavar="HOST:PORT", help=f"a broker's own address, not Weir's (default: {default})"
        )
        command.add_argument(
            "--command-config", type=Path, metavar="FILE",
            help="a properties file with the TLS and SASL settings (default: upstream.tls and upstream.sasl of the config)",
        )  # fmt: skip
    for command in (lift, restore):
        command.add_argument("--dry-run", action="store_true", help="show the changes, and make none")
    read.add_argument("--dry-run", action="store_true", help="deprecated since 0.3.0: import never changes anything")
    read.set_defaults(run=_run(_import), parser=read)
    lift.set_defaults(run=_run(_lift), parser=lift)
    restore.set_defaults(run=_run(_restore), parser=restore)


def _properties_help() -> str:
    return """
keys of the --command-config file, as Kafka's tools take them; others are an error:
  security.protocol, sasl.mechanism (PLAIN, SCRAM-SHA-256, SCRAM-SHA-512), sasl.jaas.config (username and password),
  ssl.truststore.location and ssl.keystore.location (with ssl.truststore.type=PEM and ssl.keystore.type=PEM),
  ssl.endpoint.identification.algorithm, client.id, request.timeout.ms
Relative paths in this file start at the current directory, as for Kafka's tools.

exit codes: 0 done, 1 refused or failed (nothing is half done without a message), 2 wrong usage, 130 interrupted by Ctrl-C
"""


def _count(text: str) -> int:
    number = whole_number(text)
    if number is None or not 0 < number <= 100_000:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of brokers — give 1 or more")
    return number


def _run(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """The command, with a MigrationError as one line on stderr and exit code 1, or 2 for a wrong option."""

    def run(options: argparse.Namespace) -> int:
        from gateway.migration import MigrationError, UsageError

        try:
            return command(options)
        except UsageError as error:
            options.parser.error(printable(str(error)))
        except MigrationError as error:
            print(printable(str(error)), file=sys.stderr)
        return 1

    return run


# The imports stand in the functions, so that other commands start without Kafka's protocol.


def _init(options: argparse.Namespace) -> int:
    import asyncio

    from gateway.migration.init_command import InitOptions, init

    asyncio.run(init(InitOptions(options.bootstrap_server, options.command_config, options.out, options.advertised_host)))
    return 0


def _import(options: argparse.Namespace) -> int:
    import asyncio

    from gateway.config.load import load_config
    from gateway.migration.access import access_of
    from gateway.migration.import_command import import_quotas

    if options.dry_run:
        print("--dry-run has no effect: import never changes anything", file=sys.stderr)
    config = load_config(options.config)
    access = access_of(options.bootstrap_server, options.command_config, config, options.config)
    print(asyncio.run(import_quotas(config, options.config, access, options.brokers)), end="")
    return 0


def _lift(options: argparse.Namespace) -> int:
    from gateway.config.load import load_config
    from gateway.migration.access import access_of
    from gateway.migration.lift_command import LiftOptions, lift

    config = load_config(options.config)
    access = access_of(options.bootstrap_server, options.command_config, config, options.config)
    chosen = LiftOptions(options.restore_file, options.admins, options.brokers, options.dry_run, options.yes)
    return lift(config, options.config, access, chosen)


def _restore(options: argparse.Namespace) -> int:
    from gateway.config.load import load_config
    from gateway.migration import restore_file
    from gateway.migration.access import access_of, check_not_gateway
    from gateway.migration.restore_command import RestoreOptions, restore

    content = restore_file.read(options.file)
    config = None if options.config is None else load_config(options.config)
    servers = options.bootstrap_server or ",".join(content.bootstrap_servers)
    access = access_of(servers, options.command_config, config, options.config)
    if config is not None:
        check_not_gateway(config, access.bootstrap)
    return restore(options.file, content, access, RestoreOptions(options.dry_run, options.force))
