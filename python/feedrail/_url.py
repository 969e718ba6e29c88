"""Addresses of sources: `nvmf://host[:port]/<nqn>[/<name or nsid>]`."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import quote, unquote, urlsplit

SCHEME = "nvmf"
#: Port of NVMe over RDMA, as assigned by IANA.
DEFAULT_PORT = 4420


@dataclass(frozen=True)
class NvmfUrl:
    """A subsystem, and one of its namespaces or all of them.

    Attributes:
        host: Name or address; an IPv6 address without brackets.
        port: RDMA service port.
        nqn: NVMe qualified name of the subsystem; empty if the URL ends before it.
        namespace: Name of the namespace or its number in digits; `None` for all namespaces.
    """

    host: str
    port: int
    nqn: str
    namespace: str | None

    @classmethod
    def parse(cls, url: str) -> NvmfUrl:
        """Takes a URL apart. `%` escapes stand for bytes of UTF-8.

        Raises:
            ValueError: it is not of the form above.
        """
        parts = urlsplit(url)
        if parts.scheme != SCHEME or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not nvmf://host[:port]/<nqn>[/<name or nsid>]")
        if parts.username is not None or parts.port == 0:
            raise ValueError(f"{url!r}: the part after // is a host, and a port from 1 to 65535")
        nqn, _, namespace = parts.path.removeprefix("/").partition("/")
        return cls(
            parts.hostname, parts.port or DEFAULT_PORT, unquote(nqn), unquote(namespace) or None
        )

    def resolve(self) -> str:
        """An IP address of the host.

        Raises:
            OSError: the name is not known.
        """
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)
        return str(found[0][4][0])

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORT else f":{self.port}"
        nqn = f"/{quote(self.nqn, safe=':')}" if self.nqn else ""
        namespace = "" if self.namespace is None else f"/{quote(self.namespace)}"
        return f"{SCHEME}://{host}{port}{nqn}{namespace}"
