"""A web server on ::1 only. Prints its port."""

import socket
import threading

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def served(connection: socket.socket) -> None:
    while connection.recv(65536):
        connection.sendall(OK)


listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=served, args=(listener.accept()[0],), daemon=True).start()
