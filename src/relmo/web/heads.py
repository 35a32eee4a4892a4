"""Requests read by httptools, which is faster than h11 and has no limit of its own for what is not body: the head of a
request, and the lines after the last chunk of a body. Here they have one."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST = 1 << 16  # bytes, as many as h11 takes


class BoundedHeads(HttpToolsProtocol):
    """uvicorn's connection, which answers 400 where a head has no end."""

    apart = 0
    """Bytes that came since a request began, or since the last of its body."""

    def data_received(self, data: bytes) -> None:
        """Reads on."""
        self.apart += len(data)
        super().data_received(data)
        if self.apart > MOST and not self.transport.is_closing():
            self.send_400_response("the head of the request is too long")

    def on_message_begin(self) -> None:
        """A new request."""
        self.apart = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Some of its body, which others limit."""
        self.apart = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Its end; what comes next is of another one."""
        self.apart = 0
        super().on_message_complete()
