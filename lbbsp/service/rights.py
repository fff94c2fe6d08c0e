"""What a caller whose key is for some jobs hears of others: that they are not its own, and nothing else. Pure."""

import msgspec

from lbbsp.protocol import Hello, Look, Refused, Seen, ToManager
from lbbsp.service.job import Reply
from lbbsp.service.keys import ANYBODY, Caller


def not_theirs(peer: bytes, message: ToManager, caller: Caller) -> list[Reply]:
    """The replies to a message about somebody else's job."""
    if isinstance(message, Look):
        return [(peer, Seen(jobs=(), problem=_why(message.job, caller)))]
    if isinstance(message, Hello):
        refused = Refused(job=message.job, incarnation=message.incarnation, reason=_why(message.job, caller))
        return [(peer, refused)]
    return []


def only_theirs(seen: Seen, caller: Caller) -> Seen:
    """An answer without the names of others' jobs."""
    if caller is ANYBODY:
        return seen
    return msgspec.structs.replace(seen, jobs=tuple(name for name in seen.jobs if caller.may(name)))


def _why(job: str, caller: Caller) -> str:
    return f"the key {caller.name!r} is for jobs {caller.job!r}, not for {job!r}: use this job's key (`lbbsp keys`)"
