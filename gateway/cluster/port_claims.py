"""Which broker a port is for, where several processes listen on the same ones."""

from pathlib import Path


class PortClaims:
    """The agreement of processes with one `directory` in common, as a symbolic link for each address: its target is the broker.

    A client that one process has told of a port may be served by any of them, so a port has to mean the same broker to all.
    Links are made in one step, target included, and whoever comes second can read what the first has decided.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def claim(self, host: str, port: int, node_id: int) -> bool:
        """Whether the port is this broker's, by now or already. Raises OSError where the directory can't be written."""
        link = self._directory / f"{host}:{port}"
        try:
            link.symlink_to(str(node_id))
        except FileExistsError:
            return str(link.readlink()) == str(node_id)
        return True
