"""What all tests share."""

from hypothesis import settings

settings.register_profile("project", deadline=None)  # a busy machine is slow, not wrong
settings.load_profile("project")
