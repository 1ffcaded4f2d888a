"""A policy's arrays for PyTorch: a state dict, with PyTorch's names and layout. Proximo never reads one."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from proximo.errors import UserError
from proximo.run_dir.files import write_atomically
from proximo.run_dir.tensors import named


def write_state_dict(path: Path, tree: dict[str, Any]) -> None:
    """Write `actor.Dense_0.weight` [out, in], `actor.Dense_0.bias`, ... and, with normalisation, `obs_stats.*.mean`.

    Kernels of linear layers are transposed, as PyTorch has them; its names are also used for LayerNorm and embeddings.
    """
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise UserError(f"Writing {path.name} needs PyTorch; pip install torch, or use a .safetensors path.") from None
    state = {name.replace("/", "."): torch.from_numpy(np.array(array)) for name, array in named(tree).items()}
    for name in list(state):
        module, _, last = name.rpartition(".")
        if last in ("kernel", "scale", "embedding"):
            array = state.pop(name)
            state[f"{module}.weight"] = array.T.contiguous() if last == "kernel" and array.ndim == 2 else array
    content = io.BytesIO()
    torch.save(state, content)
    write_atomically(path, content.getvalue())
