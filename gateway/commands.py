"""The command line: all commands of `weir`, and their help."""

import argparse
import asyncio
import ctypes
import logging
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill

import uvloop

from gateway import clock
from gateway.admin.connections_command import add_connections
from gateway.admin.explain_command import add_explain
from gateway.binding import outgoing_port_warnings
from gateway.command_parser import DEFAULT_ADMIN, CommandParser, kind, node_id, url
from gateway.config.certificates import certificate_warnings
from gateway.config.keys import restart_keys
from gateway.config.load import load_config, load_for_connections
from gateway.config.model import WeirConfig
from gateway.config.paths import path_warnings
from gateway.config.problems import ConfigError
from gateway.config.summary import summary
from gateway.config.timed_rows import past_warnings, timed_lines
from gateway.early_signals import INTERRUPTED
from gateway.log import configure_logging
from gateway.migration import command_line as migration
from gateway.overdue import Deadline
from gateway.quotas.kinds import CLIENT_KINDS
from gateway.reports.job import command as reports
from gateway.standard_streams import StdoutError, discard_stdout
from gateway.terminal_text import printable, printable_lines
from gateway.version import weir_build, weir_version
from gateway.workers.worker import CUT, Worker

OK, FAILED = 0, 1
"""Exit codes. argparse itself exits with 2, Ctrl-C with `INTERRUPTED`, and `serve` has one more."""

_LAYOUT = argparse.RawDescriptionHelpFormatter

_ABOUT = """\
Weir is a gateway in front of Apache Kafka. Clients connect to Weir as if it were the broker. Weir measures
the use of each client and throttles clients over their quota, evenly (KIP-219).
"""

_EXAMPLES = """\
examples:
  weir init --bootstrap-server broker1:9092    write a first weir.yaml for a running cluster
  weir check --config weir.yaml      validate the file and list all errors
  weir serve --config weir.yaml      run the gateway; edits of the file take effect while it runs
  weir quotas                        show each client's use now (press Ctrl-C to stop)
  weir quotas --json | jq .rows      the same for scripts
  weir explain --config weir.yaml --user alice --client-id etl    show the quotas of one client
  weir connections --user alice      show who is connected, with the bytes per second of each connection
  weir quotas forgive --client-id etl    clear a client's debt, which ends its mute
  weir quotas import --config weir.yaml --bootstrap-server broker1:9092    print the brokers' own quotas as a config
  weir volumes publish --config weir.yaml    beside a broker: publish the usage of its disks
  weir report --events ./throttle-ledger --out ./report    report throttles: clients, quotas, affected neighbours

the smallest weir.yaml:
  upstream: {bootstrap_servers: ["127.0.0.1:9092"]}
  listeners: [{bootstrap_port: 29092}]
  quotas: {entities: [{user: "<default>", producer_byte_rate: 1048576}]}

exit codes: 0 clean, 1 config error, unusable state file, gateway not reached or output not written, 2 wrong usage,
  3 an address can't be bound, 130 interrupted by Ctrl-C
"""

_SERVE = """\
Runs the gateway in the foreground until SIGTERM or Ctrl-C, then drains: /readyz answers 503. After
connections.drain_delay_seconds it accepts no new connections. Open connections have connections.drain_seconds
for their requests in flight. A second signal ends the gateway at once.

A change of the file, and SIGHUP, reload it: quotas and limits change on open connections. A file that got shorter, or
whose last line has no end, may be half-written. So may a file that has changed during the start. Weir waits until it
stays the same for 3 s, and SIGHUP ends the wait.

A file with an error is refused as a whole. The config in effect stays, and the log, /api/config and
weir_config_reloads_total say so. The same holds for a file that changes one of these keys, which need a restart:

{restart_keys}

With `workers` above 1, a supervisor starts that many processes, which share the listeners' ports, and replaces
processes that die. Send signals to the supervisor. The admin server shows the workers as one gateway.

Logs go to stderr. Metrics, probes and the admin API are at admin.host:admin.port (127.0.0.1:9644).
"""

_CHECK = """\
Reads the file as `weir serve` would and prints one line for each error, with the key's path, the value, the line
and the remedy. It also reads the certificates and keys that the file names; a relative name starts at the config
file's directory. Exits with 0 if the file is valid, with 1 if not. Prints warnings, then a summary of the features
that are on and off.

It makes no changes. Without --brokers, it makes no connections. With --brokers it asks the brokers for their own
quotas, and warns of rates that were copied from them. Kafka grants a rate at each broker, Weir in the whole cluster.
"""

_VOLUMES = """\
Runs beside a broker and publishes the usage of its file systems, at start and every quotas.volumes.publish_interval_ms.
It writes to the compacted topic quotas.volumes.topic, and creates a missing topic. Gateways with
`quotas.volumes: {source: topic}` read the topic. They delay producers above the soft limit and pause them above the
hard limit. The limits are those of this file. Of the files that it names, the agent needs those of `upstream` alone.

Its metrics and probes (/metrics, /livez, /readyz) are on admin.host, port quotas.volumes.agent.admin_port (9645). If the
port is taken, it logs an error and publishes without them.

Brokers of Kafka 3.3 or later do not need it: with `source: log_dirs` gateways ask them directly.

example:
  weir volumes publish --config weir.yaml --broker-id 3 --path /var/lib/kafka-1 --path /var/lib/kafka-2
"""

_QUOTAS = """\
Shows each client's rate beside its limit, the highest use first, from a running gateway. On a terminal the table
is updated each second; in a file or a pipe it is printed once. A quota that no client has used lately has no row there:
--all lists these quotas too. Ctrl-C is the ordinary end of the table on a terminal: the exit code is 0.

--groups shows the groups that share a capacity: the use and the present share of each. It also shows the part that
a group lends (-) or borrows (+), and the part that the group may use at any time.
"""

_FORGIVE = """\
Clears the debt of a client that has used far more than its quota, and unmutes its connections. Later use counts as
always. Gateways that share quotas have separate balances: run the command for each gateway.

Use the names of `weir quotas`; "<other>" stands for the shared buckets of clients beyond quotas.max_entities.

Run it on the gateway's own host, or in its pod: the gateway refuses other machines. If admin.host is an address of this host
alone, give it with --admin. The gateway also refuses names of groups that the config file does not have. A client without debt
is no error.

examples:
  weir quotas forgive --client-id etl --kind produce
  weir quotas forgive --client-id "<other>"
  weir quotas forgive --group jobs --admin http://10.0.0.11:9644
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code."""
    code = OK
    try:
        try:
            code = _run(arguments)
        finally:  # also behind --help, which raises SystemExit
            print(end="", flush=True)  # here, so that an error is noticed before Python ends
    except KeyboardInterrupt as interrupt:
        sys.stderr.write(f"{str(interrupt) or 'interrupted'}\n")  # whole: the log's thread may write a line just now
        return INTERRUPTED
    except StdoutError as error:
        discard_stdout()
        print(error, file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader of the pipe has closed it
        discard_stdout()
    return code


def _run(arguments: Sequence[str] | None) -> int:
    options, unknown = _parser().parse_known_args(arguments)
    if unknown:
        options.parser.error(options.parser.unrecognized(unknown))
    try:
        return int(options.run(options))
    except ConfigError as error:
        # For `weir check` the problems are the result, for other commands they are the cause of the failure.
        with suppress(BrokenPipeError):  # the exit code still says that there are errors
            for problem in error.problems:
                print(problem, file=sys.stdout if options.run is _check else sys.stderr)
        plural = "error" if len(error.problems) == 1 else "errors"
        print(f"{error.source}: {len(error.problems)} {plural}", file=sys.stderr)
        return FAILED


def _serve(options: argparse.Namespace) -> int:
    try:
        return _run_gateway(options)
    except KeyboardInterrupt:  # before the event loop handles the signal
        return OK


def _run_gateway(options: argparse.Namespace) -> int:
    # The default action would end a starting gateway. No change is lost: the reloader reads the file when it starts.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    path: Path = options.config
    worker = None if options.worker is None else Worker(options.worker, options.worker_directory, options.worker_claims)
    level = logging.DEBUG if options.verbose else logging.INFO
    configure_logging(options.log_format, level=level, worker=options.worker)
    config, history = (load_config(path), None) if worker is None else worker.kept(path)
    end_within = Deadline().end_within
    if worker is None:
        for warning in _warnings(path, config, starts=True):
            logging.getLogger("weir.config").warning("%s: %s", path, warning)
        if config.workers > 1:
            from gateway.workers.supervisor import supervise

            further = ["--log-format", options.log_format, *(["--verbose"] if options.verbose else [])]
            return _kept(uvloop.run(supervise(path, config, further, end_within)))
    from gateway.app import serve  # here, so that `weir check` and `weir quotas` start without the whole gateway

    return _kept(uvloop.run(serve(path, config, worker, history, end_within)))


def _kept(code: int) -> int:
    """Return the exit code. After 0, signals have no effect: the default actions, which Python restores, exit with another."""
    for number in (signal.SIGTERM, signal.SIGINT, CUT):
        if code == OK and callable(signal.getsignal(number)):  # the handler of uvloop, which stays after the loop's end
            # Python warns of a signal that comes while it sets the action.
            ctypes.CDLL(None).signal(int(number), ctypes.c_void_p(signal.SIG_IGN))
            signal.signal(number, signal.SIG_IGN)
    return code


def _check(options: argparse.Namespace) -> int:
    if options.command_config is not None and not options.brokers:
        options.parser.error("--command-config needs --brokers: without it, no connection is made")
    config = load_config(options.config)
    warnings = _warnings(options.config, config)
    if options.brokers:
        from gateway.migration import MigrationError
        from gateway.migration.ask_brokers import broker_warnings  # here, so that other checks start without Kafka's protocol

        try:
            warnings += broker_warnings(config, options.config, options.command_config)
        except MigrationError as error:
            print(printable(str(error)), file=sys.stderr)
            return FAILED
    addresses, *features = summary(config)
    lines = [f"warning: {warning}" for warning in warnings]
    lines += [f"{options.config}: valid: {addresses}"]
    lines += [f"  {line}" for line in (*features, *timed_lines(config.quotas.row_lists, clock.utc()))]
    print(printable_lines(lines))
    return OK


def _warnings(path: Path, config: WeirConfig, *, starts: bool = False) -> list[str]:
    """`starts`: the config is that of this machine, and Weir needs its folders now."""
    return [
        *config.warnings(),
        *past_warnings(config.quotas.row_lists, clock.utc()),
        *certificate_warnings(config, path.parent, clock.wall()),
        *path_warnings(config, path.parent, starts=starts),
        *outgoing_port_warnings(config),
    ]


def _quotas(options: argparse.Namespace) -> int:
    if options.config is not None or options.command_config is not None:
        options.parser.error("the table comes from a running gateway, not from a file: give --admin URL instead")
    # Rich is imported here, so that other commands start without it.
    from gateway.admin.admin_client import AdminUnreachableError
    from gateway.admin.group_table import show_groups
    from gateway.admin.table import show_quotas, stdout_console

    console = stdout_console()
    try:
        if options.groups:
            asyncio.run(show_groups(options.admin, once=options.once, as_json=options.json, console=console))
            return OK
        asyncio.run(show_quotas(options.admin, once=options.once, as_json=options.json, console=console, unused=options.all))
    except AdminUnreachableError as error:
        print(error, file=sys.stderr)
        return FAILED
    return OK


def _forgive(options: argparse.Namespace) -> int:
    # Rich is imported here, so that other commands start without it.
    from gateway.admin.admin_client import AdminUnreachableError
    from gateway.admin.table import forgive_debts
    from gateway.quotas.debts import DebtFilter, DebtFilterError

    if options.user is None and options.client_id is None and options.group is None:
        options.parser.error("give --user NAME, --client-id NAME, both, or --group NAME, as `weir quotas` shows them")
    names = {"user": options.user, "client-id": options.client_id, "group": options.group, "kind": options.kind}
    wanted = {key: value for key, value in names.items() if value is not None}
    try:
        DebtFilter.parse(wanted)
    except DebtFilterError as error:
        options.parser.error(f"--{error}")
    try:
        asyncio.run(forgive_debts(options.admin, wanted))
    except AdminUnreachableError as error:
        print(error, file=sys.stderr)
        return FAILED
    return OK


def _publish_volumes(options: argparse.Namespace) -> int:
    config = load_for_connections(options.config)
    configure_logging(options.log_format)
    from gateway.features.volume_quotas.agent import agent_config, publish_volumes

    agent = agent_config(config, options.config, options.broker_id, options.path)
    return _kept(uvloop.run(publish_volumes(agent, options.once)))


def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = CommandParser(prog="weir", description=_ABOUT, epilog=_EXAMPLES, formatter_class=_LAYOUT)
    parser.add_argument("--version", action="version", version=f"weir {weir_version()} ({weir_build()})")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_check(commands)
    migration.add_init(commands)
    _add_volumes(commands)
    add_explain(commands)
    _add_quotas(commands)
    add_connections(commands)
    report = commands.add_parser(
        "report", help="report from the ledger", description=reports.ABOUT, epilog=reports.EXAMPLES, formatter_class=_LAYOUT
    )
    reports.add_options(report)
    report.set_defaults(run=reports.run, parser=report)
    return parser


def _add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    about = _SERVE.format(restart_keys=fill(", ".join(restart_keys()), width=110, initial_indent="  ", subsequent_indent="  "))
    serve = commands.add_parser("serve", help="run the gateway", description=about, formatter_class=_LAYOUT)
    serve.add_argument("--log-format", choices=["json", "text"], default="json", help="of the log (default: json)")
    serve.add_argument("--verbose", action="store_true", help="log the events of each connection")
    # Only for the supervisor of several workers.
    serve.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    serve.add_argument("--worker-directory", type=Path, help=argparse.SUPPRESS)
    serve.add_argument("--worker-claims", type=int, help=argparse.SUPPRESS)
    _add_config(serve)
    serve.set_defaults(run=_serve, parser=serve)


def _add_check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    check = commands.add_parser("check", help="validate a config file", description=_CHECK, formatter_class=_LAYOUT)
    check.add_argument("--brokers", action="store_true", help="also connect to the brokers, and compare with their own quotas")
    check.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="with --brokers: a properties file of an administrator's credentials",
    )
    _add_config(check)
    check.set_defaults(run=_check, parser=check)


def _add_config(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", type=Path, required=True, metavar="FILE", help="the config file, such as weir.yaml")


def _add_volumes(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    volumes = commands.add_parser("volumes", help="publish the usage of a broker's disks")
    publish = volumes.add_subparsers(title="commands", metavar="COMMAND", required=True).add_parser(
        "publish", help="publish the usage, as an agent beside a broker", description=_VOLUMES, formatter_class=_LAYOUT
    )
    _add_config(publish)
    publish.add_argument(
        "--broker-id", type=node_id, metavar="ID", help="node.id of the broker (quotas.volumes.agent.broker_id)"
    )
    publish.add_argument(
        "--path", action="append", metavar="DIR", help="one of its log.dirs; may be repeated (quotas.volumes.agent.paths)"
    )
    publish.add_argument("--once", action="store_true", help="publish once, then exit: 0 on success, otherwise 1")
    publish.add_argument("--log-format", choices=["json", "text"], default="json", help="of the log (default: json)")
    publish.set_defaults(run=_publish_volumes, parser=publish)


def _add_quotas(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    quotas = commands.add_parser("quotas", help="show each client's use now", description=_QUOTAS, formatter_class=_LAYOUT)
    quotas.add_argument("--admin", type=url, default=DEFAULT_ADMIN, metavar="URL", help=f"of the gateway ({DEFAULT_ADMIN})")
    quotas.add_argument("--once", action="store_true", help="print the table once, also on a terminal")
    quotas.add_argument("--json", action="store_true", help="print the gateway's answer once, as JSON")
    shown = quotas.add_mutually_exclusive_group()
    shown.add_argument("--all", action="store_true", help="also list configured quotas that no client has used lately")
    shown.add_argument("--groups", action="store_true", help="show the groups that share a capacity instead")
    # Options of the commands below it. Without these lines, argparse would take their values for the names of commands.
    quotas.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    quotas.add_argument("--command-config", type=Path, help=argparse.SUPPRESS)
    quotas.set_defaults(run=_quotas, parser=quotas)
    of_quotas = quotas.add_subparsers(title="commands", metavar="[COMMAND]")
    migration.add_commands(of_quotas)
    forgive = of_quotas.add_parser(
        "forgive", help="clear a client's debt, on the gateway's own host", description=_FORGIVE, formatter_class=_LAYOUT
    )
    forgive.add_argument("--user", metavar="NAME", help="the user, as `weir quotas` shows it")
    forgive.add_argument("--client-id", metavar="NAME", help="the client-id, as `weir quotas` shows it")
    forgive.add_argument("--group", metavar="NAME", help="a group of quotas.groups, in place of a client")
    forgive.add_argument(
        "--kind",
        type=kind,
        metavar="KIND",
        help=f"only one kind of quota: {', '.join(CLIENT_KINDS)}, or a single API's, such as request_rate.Metadata"
        " (default: every kind)",
    )
    forgive.add_argument(
        "--admin", type=url, default=argparse.SUPPRESS, metavar="URL", help=f"of the gateway ({DEFAULT_ADMIN})"
    )
    forgive.set_defaults(run=_forgive, parser=forgive)
