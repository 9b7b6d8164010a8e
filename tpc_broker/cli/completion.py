"""``tpc completion``: what makes a shell complete the command."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_TPC_COMPLETE"


@click.command()
@click.argument("shell", metavar="|".join(SHELLS), type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print what makes a shell complete `tpc`.

    \b
    bash: eval "$(tpc completion bash)" in ~/.bashrc
    zsh:  eval "$(tpc completion zsh)" in ~/.zshrc
    fish: tpc completion fish > ~/.config/fish/completions/tpc.fish
    """  # noqa: D301 (click's mark for text that keeps its lines)
    kind = get_completion_class(shell)
    assert kind is not None, shell
    click.echo(kind(context.find_root().command, {}, "tpc", VARIABLE).source())
