"""Opening of sources by their URL, path or manifest."""

from __future__ import annotations

import os
from typing import Literal

from feedrail._errors import NotFound
from feedrail._local import path_of
from feedrail._manifest import Manifest
from feedrail._secrets import Secrets
from feedrail._source import Provider, Source, Specification


def open(
    source: str | os.PathLike[str] | Manifest,
    /,
    *,
    provider: Provider = "auto",
    local_address: str | None = None,
    io_queues: int = 1,
    queue_entries: int = 128,
    io_timeout: float = 30.0,
    loss_timeout: float | None = None,
    replicas: Literal["spread", "first"] = "spread",
    host_nqn: str | None = None,
    dhchap_secret: str | None = None,
    dhchap_secret_file: str | os.PathLike[str] | None = None,
    dhchap_ctrl_secret: str | None = None,
    dhchap_ctrl_secret_file: str | os.PathLike[str] | None = None,
    reauth_period: float | None = None,
) -> Source:
    """Opens a data set, and connects to it.

    All targets of a manifest are connected at the same time. One that is not there, or that has a
    shard with other bytes, is a `ReplicaWarning` as long as each shard can be read from another.

    Args:
        source: `nvmf://host[:4420]/<nqn>` for all namespaces of a subsystem in the order of their
            numbers, `nvmf://host[:4420]/<nqn>/<name or nsid:N>` for one, the path of a
            `manifest.json`, or a `Manifest`. Or files of this machine: the path of a file that is
            not called `*.json` or of a folder, whose files are shards as a target would export
            them, or `file:///path`. Options for connections mean nothing then.
        provider: `"verbs"` for RDMA devices, `"soft"` for RoCE v2 over UDP sockets, `"shm"` for
            shared memory with a target on this machine, `"auto"` for shared memory where the
            target does that too, else verbs where a device serves the address and soft elsewhere.
        local_address: The IP address to connect from; that of the route if `None`.
        io_queues: I/O queues of a connection, each with `queue_entries` entries.
        io_timeout: Seconds that a range may be without progress, and a flush without its end if
            that is more than 15.
        loss_timeout: Seconds without a connection after which reads fail; 60 if `None`. One attempt
            to connect takes at most as long, within 1 and 10 seconds.
        replicas: For a manifest: `"spread"` reads a shard from the less loaded of the two targets
            that rank first for it, by a hash that all hosts agree on; `"first"` from the first in
            the manifest that is connected.
        host_nqn: Name of this host, by which targets know it and its key; that of
            `/etc/nvme/hostnqn` if `None`, and a random one without that file.
        dhchap_secret: Key of this host, `DHHC-1:...`, for targets that require authentication. It
            is not pickled, so that other processes than forks need `dhchap_secret_file`.
        dhchap_secret_file: File with that key as its only line, which others must not be able to
            read. Each process reads it when it connects.
        dhchap_ctrl_secret: Key with which the target has to prove who it is.
        dhchap_ctrl_secret_file: File with that key.
        reauth_period: Seconds after which all queues authenticate again, while they are used, at
            least 1; when the target asks for it only, if `None`.

    Raises:
        ValueError: the URL or the manifest is malformed, or an option is out of its bounds.
        TargetLost: the host's name is not known, or nothing answers at its address; with a
            manifest, at all addresses that have a shard.
        DatasetChanged: no target has a shard as the manifest has it.
        NotFound: there is no such subsystem, namespace or file.
        AccessDenied: the subsystem does not allow this host.
        AuthenticationError: a key is missing or wrong, on either side.
    """
    if replicas not in ("spread", "first"):
        raise ValueError(f"replicas={replicas!r}: it is 'spread' or 'first'")
    manifest, url, is_local = _named(source)
    specification = Specification(
        manifest=manifest,
        is_local=is_local,
        replicas=replicas,
        url=url,
        provider=provider,
        local_address=local_address,
        io_queues=io_queues,
        queue_entries=queue_entries,
        io_timeout=io_timeout,
        loss_timeout=loss_timeout,
        host_nqn=host_nqn,
        secrets=Secrets.of(
            dhchap_secret,
            dhchap_secret_file,
            dhchap_ctrl_secret,
            dhchap_ctrl_secret_file,
            reauth_period,
        ),
    )
    return Source(specification)


def _named(source: str | os.PathLike[str] | Manifest) -> tuple[Manifest | None, str, bool]:
    """The manifest that a source is, if it is one, what it is called, and whether it is files."""
    if isinstance(source, Manifest):
        return source, f"manifest {source.name}", False
    path, text = path_of(source), os.fspath(source)
    if path is None:
        return None, text, False
    is_manifest = path.suffix == ".json" and not text.startswith("file:") and not path.is_dir()
    if is_manifest:
        return Manifest.load(path), text, False
    if not text or ("://" in text and not path.exists()):
        raise ValueError(f"{text!r} is neither nvmf://host[:port]/<nqn> nor file:///path, nor a path")
    if not path.exists():
        raise NotFound(
            f"{text!r} is neither nvmf://host[:port]/<nqn> nor a file, a folder or a manifest"
        )
    return None, os.path.abspath(path), True
