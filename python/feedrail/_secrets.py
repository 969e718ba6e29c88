"""Secrets of in-band authentication: keys, or the files that have them."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from typing import Self, SupportsIndex


class Key(str):
    """Text of a key, which is neither shown nor pickled: a pickle may be a file."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<a key>"

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise pickle.PicklingError(
            "a key is not pickled: give dhchap_secret_file (and dhchap_ctrl_secret_file), which a "
            "process that loads the pickle reads itself"
        )


@dataclass(frozen=True)
class Secrets:
    """With what host and target authenticate. Files are read when connections are made.

    Attributes:
        dhchap_secret: Key of this host.
        dhchap_secret_file: Absolute path of the file with the key of this host.
        dhchap_ctrl_secret: Key of the target.
        dhchap_ctrl_secret_file: Absolute path of the file with the key of the target.
        reauth_period: Seconds after which the host authenticates again; only once if `None`.
    """

    dhchap_secret: Key | None = field(default=None, repr=False)
    dhchap_secret_file: str | None = None
    dhchap_ctrl_secret: Key | None = field(default=None, repr=False)
    dhchap_ctrl_secret_file: str | None = None
    reauth_period: float | None = None

    @classmethod
    def of(
        cls,
        dhchap_secret: str | None,
        dhchap_secret_file: str | os.PathLike[str] | None,
        dhchap_ctrl_secret: str | None,
        dhchap_ctrl_secret_file: str | os.PathLike[str] | None,
        reauth_period: float | None = None,
    ) -> Self:
        """Takes the options of `feedrail.open`.

        Raises:
            ValueError: a key and its file are given, the key of a target or a period without a key
                of this host, or a period below 1 s.
        """
        if dhchap_secret is not None and dhchap_secret_file is not None:
            raise ValueError("dhchap_secret and dhchap_secret_file: give one of them")
        if dhchap_ctrl_secret is not None and dhchap_ctrl_secret_file is not None:
            raise ValueError("dhchap_ctrl_secret and dhchap_ctrl_secret_file: give one of them")
        has_host = dhchap_secret is not None or dhchap_secret_file is not None
        if not has_host and (dhchap_ctrl_secret is not None or dhchap_ctrl_secret_file is not None):
            raise ValueError(
                "there is a secret of the target and none of this host: give dhchap_secret_file as "
                "well, since a target proves who it is only to a host that does"
            )
        if not has_host and reauth_period is not None:
            raise ValueError("reauth_period without a secret of this host: give dhchap_secret_file as well")
        if reauth_period is not None and not reauth_period >= 1:
            raise ValueError(f"reauth_period={reauth_period!r}: it is at least 1 s")
        return cls(
            _key(dhchap_secret),
            _path(dhchap_secret_file),
            _key(dhchap_ctrl_secret),
            _path(dhchap_ctrl_secret_file),
            reauth_period,
        )

    def options(self) -> dict[str, Any]:
        """The options, as `feedrail.open` and the native module take them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def _key(text: str | None) -> Key | None:
    return None if text is None else Key(text)


def _path(file: str | os.PathLike[str] | None) -> str | None:
    return None if file is None else os.path.abspath(file)
