"""A trunk's weights from a file that others wrote: found, renamed, checked, and what did not fit listed.

The file holds tensors alone: `.safetensors`, or a torch file, read with `weights_only` (it cannot bring code with it).
Its names need not be timm's.

1. A training checkpoint holds several state dicts, as DINO's `{"student": ..., "teacher": ..., "optimizer": ...}`
   does. The one that shares most names with the trunk is taken; of equal ones, the averaged ("teacher", "ema").
2. What stands before the shared names, such as `module.backbone.`, is taken off.
3. timm's own filter for the architecture renames the original CLIP, DINOv2, DINOv3 and EVA names, and resamples
   positions and patches to the trunk's image size.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from timm.models import load_state_dict
from torch import Tensor, nn

from rarevision.model.weights import ModelError

AVERAGED = ("teacher", "ema")  # names of the state dicts that training averages, which serve better


def load_checkpoint_file(trunk: nn.Module, file: str | Path) -> str:
    """Load a file's weights into a trunk, all of them or none; a report of what was taken from where.

    Raises `ModelError` with the same report if a tensor of the trunk is not in the file, or has another shape there.
    """
    place, state = closest(state_dicts(read(file)), trunk, file)
    prefix = shared_prefix(state, trunk)
    named = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    beside = [name for name in state if not name.startswith(prefix)]
    convert = getattr(sys.modules[type(trunk).__module__], "checkpoint_filter_fn", lambda state, trunk: state)
    try:
        found = convert(dict(named), trunk)
    except Exception as error:  # a filter meets names and shapes that it was not written for
        raise ModelError(f"timm cannot convert it for {type(trunk).__name__}: {error}", file=file) from error
    wanted = trunk.state_dict()
    fits = {name: found[name] for name in wanted if name in found and found[name].shape == wanted[name].shape}
    unfit = [name for name in wanted if name in found and name not in fits]
    resampled = [
        f"{name} {size(named[name])} to {size(value)}"
        for name, value in fits.items()
        if name in named and named[name].shape != value.shape
    ]
    lines = [
        f"{len(fits)} of {len(wanted)} tensors of {trunk.pretrained_cfg['architecture']} are in {place or 'it'}"
        + f", their names behind {prefix!r}" * bool(prefix),
        listed("of another shape", [f"{name} {size(found[name])} instead of {size(wanted[name])}" for name in unfit]),
        listed("not in the file", wanted.keys() - found.keys()),
        listed("resampled", resampled),
        listed("in the file, but not used", [*beside, *(found.keys() - wanted.keys())]),
    ]
    report = "\n  ".join(line for line in lines if line)
    if len(fits) < len(wanted):
        raise ModelError(f"{report}\n  name the architecture that it was trained with in model.trunk", file=file)
    trunk.load_state_dict(fits)
    return f"{file}: {report}"


def read(file: str | Path) -> Any:
    if not Path(file).is_file():
        raise ModelError("no such file", file=file, remedy="model.trunk_weights names a file of weights")
    try:
        return load_state_dict(str(file), weights_only=True)
    except Exception as error:  # torch and safetensors raise many kinds for files that are torn or hold code
        remedy = "only tensors are read; save the state dict alone, best with safetensors.torch.save_file"
        raise ModelError(f"not readable as weights: {error}", file=file, remedy=remedy) from error


def state_dicts(content: Any, place: str = "") -> dict[str, dict[str, Tensor]]:
    """Every dictionary of tensors in a file's content, by its keys from the outside in, such as `model.teacher`."""
    if not isinstance(content, dict):
        return {}
    tensors = {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    found = {place: tensors} if tensors else {}
    for key, value in content.items():
        found |= state_dicts(value, f"{place}.{key}".lstrip("."))
    return found


def closest(found: dict[str, dict[str, Tensor]], trunk: nn.Module, file: str | Path) -> tuple[str, dict[str, Tensor]]:
    """The state dict that shares most names with the trunk, and its place in the file."""
    if not found:
        raise ModelError("holds no dictionary of tensors", file=file)

    def rank(place: str) -> tuple[int, bool, int]:
        shared = max(prefixes(found[place], trunk).values(), default=0)
        return shared, any(word in place for word in AVERAGED), len(found[place])

    place = max(found, key=rank)
    return place, found[place]


def prefixes(names: Iterable[str], trunk: nn.Module) -> Counter[str]:
    """What stands before the trunk's names in these names, and how many names each stands before."""
    wanted = trunk.state_dict().keys()
    counts: Counter[str] = Counter()
    for name in names:
        starts = [0, *(match.end() for match in re.finditer(r"\.", name))]
        counts.update(name[:start] for start in starts if name[start:] in wanted)
    return counts


def shared_prefix(names: Iterable[str], trunk: nn.Module) -> str:
    return max(prefixes(names, trunk).items(), key=lambda item: item[1], default=("", 0))[0]


def listed(title: str, names: Iterable[str]) -> str:
    """One line of names, those of all blocks together: `blocks.*.norm1.bias (12)`."""
    counts = Counter(re.sub(r"\.\d+(?=\.)", ".*", name) for name in sorted(names))
    parts = [f"{name} ({count})" if count > 1 else name for name, count in counts.items()]
    return f"{title}: {', '.join(parts)}" if parts else ""


def size(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
