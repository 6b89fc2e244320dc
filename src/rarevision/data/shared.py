"""Arrays shared with worker processes."""

from typing import Any, ClassVar

import numpy as np


class SharedArrays:
    """Mixin: the arrays named in `_arrays` go to spawned workers as shared memory (torch's reductions), not as copies.

    Forked workers share the pages anyway.
    """

    _arrays: ClassVar[tuple[str, ...]] = ()

    def __getstate__(self) -> dict[str, Any]:
        import torch  # half a gigabyte that loading an index does without

        state = dict(self.__dict__)
        shared = self.__dict__.setdefault("_shared", {})
        for name in self._arrays:
            if state[name] is not None:
                if name not in shared:
                    shared[name] = torch.from_numpy(np.array(state[name])).share_memory_()
                state[name] = shared[name]
        return state | {"_shared": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name in self._arrays:
            if state[name] is not None:
                state["_shared"][name] = state[name]  # the tensor keeps the memory alive
                state[name] = state[name].numpy()
        self.__dict__.update(state)
