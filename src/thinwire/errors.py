"""Every error that thinwire raises on purpose: one name per cause, one base class for all."""

__all__ = [
    "AlteredFrameError",
    "BackendError",
    "ChannelError",
    "DisagreementError",
    "ForeignFrameError",
    "FrameError",
    "LabError",
    "MalformedFrameError",
    "MessageError",
    "PeerFailure",
    "RegistrationError",
    "SchemeError",
    "StateError",
    "ThinwireError",
    "TruncatedFrameError",
    "UnexpectedFrameError",
    "UnsupportedVersionError",
]


class ThinwireError(Exception):
    """Base of all errors below."""


class SchemeError(ThinwireError, ValueError):
    """A method, option or level count that does not exist."""


class MessageError(ThinwireError, ValueError):
    """Tensors that cannot be encoded: integer or complex dtypes, mixed devices, mismatched names."""


class BackendError(ThinwireError, RuntimeError):
    """An explicitly chosen kernel backend cannot run on these tensors."""


class FrameError(ThinwireError, ValueError):
    """A frame was refused. The subclass names the cause."""


class TruncatedFrameError(FrameError):
    """The frame ends before its stated length."""


class ForeignFrameError(FrameError):
    """These bytes are not a thinwire frame."""


class UnsupportedVersionError(FrameError):
    """A thinwire frame of a format version that this release does not read."""


class AlteredFrameError(FrameError):
    """The checksum, or the stated length, does not match the bytes."""


class MalformedFrameError(FrameError):
    """The checksum holds but the header contradicts itself: an encoder's fault, not the link's."""


class UnexpectedFrameError(FrameError):
    """A valid frame, but of another layout, scheme or key than the receiver expects."""


class ChannelError(ThinwireError, RuntimeError):
    """Ranks cannot exchange frames: no process group, a lost peer, or an earlier failure."""


class PeerFailure(ChannelError):
    """A rank could not encode its part; every rank raises this with that rank's cause."""


class DisagreementError(ChannelError):
    """Ranks registered different schemes, models or versions."""


class RegistrationError(ThinwireError, ValueError):
    """A model or option to which thinwire cannot be registered."""


class StateError(ThinwireError, ValueError):
    """A saved state that does not fit the model, the ranks or the options it is loaded into."""


class LabError(ThinwireError, ValueError):
    """A training run or comparison was asked for something that does not exist."""
