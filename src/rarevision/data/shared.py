"""Arrays shared with worker processes."""

from typing import Any

import numpy as np


class SharedArrays:
    """Mixin: an object's arrays go to spawned workers as shared memory (torch's reductions), not as copies.

    Forked workers share the pages anyway.
    """

    def __getstate__(self) -> dict[str, Any]:
        import torch  # half a gigabyte that loading an index does without

        shared = self.__dict__.setdefault("_shared", {})  # kept, so that all workers get the same memory
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and name not in shared:
                shared[name] = torch.from_numpy(value.copy()).share_memory_()
        return {name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__dict__.update({name: tensor.numpy() for name, tensor in state["_shared"].items()})
