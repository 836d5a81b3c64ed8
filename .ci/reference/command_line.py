"""The page of the command line: every command of `weir` with its options, from argparse."""

import argparse
from collections.abc import Iterator

from markdown import below_title, code, table

from gateway.commands import _parser


def page() -> str:
    parser = _parser()
    parts = ["# Command line\n", _text(parser.description), _text(parser.epilog)]
    parts += ["## weir\n", _options(parser)]
    for command, words in _commands(parser):
        parts += [f"## {command.prog}\n", f"{words[:1].upper()}{words[1:]}.\n", _usage(command)]
        parts += [_text(command.description), _text(command.epilog), _options(command)]
    return below_title("\n".join(part for part in parts if part))


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            words = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                yield command, words.get(name, "")
                yield from _commands(command)


def _text(text: str | None) -> str:
    return f"```text\n{text.strip()}\n```\n" if text else ""


def _usage(command: argparse.ArgumentParser) -> str:
    """The usage on one line: argparse would wrap it, and each version of Python wraps it differently."""
    words = [command.prog]
    for action in _shown(command):
        if isinstance(action, argparse._SubParsersAction):
            words.append("COMMAND" if action.required else "[COMMAND]")
        elif not isinstance(action, argparse._HelpAction):
            text = _name(action)
            words.append(
                text if action.required or (not action.option_strings and action.nargs not in ("?", "*")) else f"[{text}]"
            )
    return f"```text\n{' '.join(words)}\n```\n"


def _options(command: argparse.ArgumentParser) -> str:
    rows = [
        (code(_name(action)), action.help or "", _default(action))
        for action in _shown(command)
        if not isinstance(action, argparse._SubParsersAction | argparse._HelpAction)
    ]
    return table(("option", "meaning", "default"), rows) if rows else ""


def _shown(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    return (action for action in command._actions if action.help != argparse.SUPPRESS)


def _name(action: argparse.Action) -> str:
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    if not action.option_strings:
        return str(value)
    return ", ".join(action.option_strings) + ("" if action.nargs == 0 else f" {value}")


def _default(action: argparse.Action) -> str:
    if action.required:
        return "required"
    return "" if action.default in (None, False, argparse.SUPPRESS) else code(str(action.default))
