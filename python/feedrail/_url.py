"""Addresses of sources: `nvmf://host[:port]/<nqn>[/<name or nsid:N>]`."""

from __future__ import annotations

import re
import socket
from dataclasses import astuple, dataclass, replace
from urllib.parse import quote

from feedrail import _core
from feedrail._errors import TargetLost

SCHEME = "nvmf"
#: Port of NVMe over RDMA, as assigned by IANA.
DEFAULT_PORT = 4420


@dataclass(frozen=True)
class NvmfUrl:
    """A subsystem, and one of its namespaces or all of them.

    Attributes:
        host: Name or address; an IPv6 address without brackets.
        port: RDMA service port.
        nqn: NVMe qualified name of the subsystem.
        name: Name of the namespace, which may consist of digits.
        nsid: Its identifier, where the URL says that.
    """

    host: str
    port: int
    nqn: str
    name: str | None = None
    nsid: int | None = None

    @classmethod
    def parse(cls, url: str) -> NvmfUrl:
        """Takes a URL apart. `%` escapes stand for bytes of UTF-8.

        Raises:
            ValueError: it is not of the form above.
        """
        return cls(*_core.parse_url(url))

    def of_subsystem(self) -> NvmfUrl:
        """The subsystem alone."""
        return replace(self, name=None, nsid=None)

    def resolve(self) -> str:
        """An IP address of the host.

        Raises:
            TargetLost: the name is not known, or cannot be looked up now.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_DGRAM)
        except socket.gaierror as error:
            message = f"the address of {self.host!r} is not known: {error}"
            raise TargetLost(message, retryable=error.errno == socket.EAI_AGAIN) from error
        return str(found[0][4][0])

    def __str__(self) -> str:
        return _core.format_url(astuple(self))


def escaped(path: str) -> str:
    """A path of a URL whose letters that need it are percent-encoded.

    Escapes stay as they are, and so do the characters of patterns.
    """
    return re.sub(r"[^!$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+", lambda found: quote(found[0], safe=""), path)
