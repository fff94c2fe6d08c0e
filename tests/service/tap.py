"""A proxy on the way to a manager that keeps what was said, for replays."""

import socket
import threading


class Tap:
    """A proxy before the manager that keeps what clients say."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.said = bytearray()
        self.up: socket.socket | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
                self.up = socket.create_connection(self.target)
            except OSError:
                return
            self.said.clear()
            threading.Thread(target=self._carry, args=(client, self.up, self.said), daemon=True).start()
            threading.Thread(target=self._carry, args=(self.up, client, bytearray()), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        try:
            while data := source.recv(65_536):
                kept += data
                target.sendall(data)
        except OSError:
            return
        finally:
            target.close()

    def close(self) -> None:
        self.listener.close()
