"""`reshard completion`: a script by which a shell completes commands and options."""

from __future__ import annotations

import argparse

import reshard.cli
from reshard.cli import output
from reshard.cli.commands import Commands, add_command

EXAMPLES = """\
examples:
  reshard completion bash >> ~/.bashrc
  reshard completion zsh > "${fpath[1]}/_reshard"
  reshard completion fish > ~/.config/fish/completions/reshard.fish
"""
SHELLS = ("bash", "zsh", "fish")


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "completion", run, "print a script for completion in a shell", EXAMPLES)
    parser.add_argument("shell", choices=SHELLS, help="which shell")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    words = options_by_command(reshard.cli.build_parser())
    script = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell](words)
    output.write_json({"shell": args.shell, "script": script}) if args.json else print(script, end="")


def options_by_command(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The options and choices of each command, as the parser has them."""
    words: dict[str, list[str]] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                words[name] = [word for inner in command._actions for word in _words(inner)]
    return words


def _words(action: argparse.Action) -> list[str]:
    choices = [] if action.option_strings or action.choices is None else [str(choice) for choice in action.choices]
    return [word for word in action.option_strings if word.startswith("--")] + choices


def bash(words: dict[str, list[str]]) -> str:
    """For bash: commands first, then what the command takes, else files."""
    cases = "\n".join(f"    {name}) words='{' '.join(options)}' ;;" for name, options in words.items())
    return f"""\
_reshard() {{
  local words
  case "${{COMP_WORDS[1]}}" in
{cases}
    *) words='{" ".join(words)} --help --version' ;;
  esac
  [ "$COMP_CWORD" -eq 1 ] && words='{" ".join(words)} --help --version'
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _reshard reshard
"""


def zsh(words: dict[str, list[str]]) -> str:
    """For zsh, by its reader of bash's completions."""
    return f"#compdef reshard\nautoload -U +X bashcompinit && bashcompinit\n{bash(words)}"


def fish(words: dict[str, list[str]]) -> str:
    """For fish: one line for each word."""
    lines = [f"complete -c reshard -n __fish_use_subcommand -f -a '{' '.join(words)}'"]
    for name, options in words.items():
        seen = f"complete -c reshard -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{seen} -l {word[2:]}" if word.startswith("--") else f"{seen} -a {word}" for word in options]
    return "\n".join(lines) + "\n"
