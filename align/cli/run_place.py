"""The place of a run on the command line: a path, or a URL whose files are copied first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from align.core.errors import RunError

if TYPE_CHECKING:
    from click import Context, Parameter


class RunPlace(click.Path):
    """Gives a path; a URL of fsspec (s3://, memory://, file://) is mirrored into a cache folder.

    Args:
        is_read: whether the command only reads; one that writes takes no URL.
    """

    def __init__(self, *, is_read: bool = True) -> None:
        super().__init__(path_type=Path)
        self._is_read = is_read

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Path:
        """Return the path.

        Raises:
            RunError: The URL cannot be read, or the command would write to it or to a file.
            MissingPackageError: fsspec is not installed.
        """
        from dumps.store.remote import cache_folder, is_url, mirror

        if isinstance(value, Path) or not is_url(value):
            if not self._is_read and Path(value).is_file():
                raise RunError(where=str(value), problem="is a file", fix="give the run's folder")
            return Path(value)
        if not self._is_read:
            raise RunError(
                where=value,
                problem="is a URL, and this command writes",
                fix="run it where the folder is, or on a copy",
            )
        mirrored = mirror(value, cache_folder(os.environ))
        if mirrored.num_copied:
            size = mirrored.copied_bytes / 1e6
            click.echo(
                f"copied {mirrored.num_copied} files ({size:.1f} MB) of {value} to {mirrored.path}",
                err=True,
            )
        return mirrored.path
