"""Events of 17 labels in video capsule endoscopy: from frames to a validated submission."""

__version__ = "0.1.0"
