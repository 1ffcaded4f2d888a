"""Videos of episodes: MP4 for watching, GIF for pages that show nothing else."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from proximo.errors import UserError
from proximo.run_dir.files import write_atomically

if TYPE_CHECKING:
    from PIL import Image

MAX_FRAMES = 3_000
GIF_FPS, GIF_WIDTH = 25, 400
"""A GIF is no compressed video: it gets at most this many frames a second, at most this wide."""


def check_installed() -> None:
    """Refuse where what writes videos is missing."""
    for module, package in (("av", "av"), ("PIL", "pillow")):
        if not importlib.util.find_spec(module):
            raise UserError(f'Videos need the package {package}; pip install "proximo[video]"')


def write_video(stem: Path, frames: Iterable[np.ndarray], fps: float) -> tuple[int, bool]:
    """Write `stem`.mp4 and `stem`.gif from frames [H, W, 3] of bytes; how many were written, and whether more came.

    Frames are taken one by one, and only those of the GIF are kept in memory.
    """
    check_installed()
    from PIL import Image

    every = math.ceil(fps / GIF_FPS)
    count, more = 0, False
    shown: list[Image.Image] = []
    movie, gif = io.BytesIO(), io.BytesIO()
    with Movie(movie, fps) as writer:
        for frame in frames:
            if more := count == MAX_FRAMES:
                break
            writer.add(frame)
            if count % every == 0:
                shown.append(_small(Image.fromarray(frame)))
            count += 1
    if not count:
        raise UserError(f"There is nothing to show in {stem.name}: no frame was drawn.")
    pause = 10 * round(100 * every / fps)  # milliseconds; GIF counts in hundredths of a second
    shown[0].save(gif, "GIF", save_all=True, append_images=shown[1:], duration=max(20, pause), loop=0)
    write_atomically(stem.with_name(f"{stem.name}.mp4"), movie.getvalue())
    write_atomically(stem.with_name(f"{stem.name}.gif"), gif.getvalue())
    return count, more


class Movie:
    """An MP4 that grows frame by frame; the first frame gives the size."""

    def __init__(self, file: io.BytesIO, fps: float):
        import av

        self._container = av.open(file, "w", format="mp4")
        self._stream = self._container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        self._stream.pix_fmt = "yuv420p"
        self._shape: tuple[int, ...] | None = None

    def add(self, frame: np.ndarray) -> None:
        import av

        if self._shape is None:
            self._shape = frame.shape
            self._stream.height, self._stream.width = (size + size % 2 for size in frame.shape[:2])
        if frame.shape != self._shape:
            raise UserError(
                f"All frames of a video must have the same size; {self._shape} was followed by {frame.shape}."
            )
        # H.264 halves the resolution of colours: both sizes must be even.
        odd = [(0, size % 2) for size in frame.shape[:2]]
        even = np.pad(frame, (*odd, (0, 0)), mode="edge")
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(even, format="rgb24")))

    def __enter__(self) -> Movie:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None and self._shape is not None:
            self._container.mux(self._stream.encode())
        self._container.close()


def _small(image: Image.Image) -> Image.Image:
    """At most GIF_WIDTH wide, in 256 colours."""
    if image.width > GIF_WIDTH:
        image = image.resize((GIF_WIDTH, max(1, round(image.height * GIF_WIDTH / image.width))))
    return image.quantize()
