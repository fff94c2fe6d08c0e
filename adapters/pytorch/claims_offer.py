"""What a rank offers where parts of iterations are to be claimed, and why it can't."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lbbsp.adapters.pytorch.accumulate import refusal
from lbbsp.adapters.pytorch.models import unwrap
from lbbsp.worker.terms import Offer

CHOICES = (False, True, "auto")


def with_claims(offer: Offer, models: Sequence[Any], loader: Any, claims: bool | str, chunks: str) -> Offer:
    """The offer of a loop of two levels; `claims` and `chunks` as of balance()."""
    if claims not in CHOICES:
        known = ", ".join(map(repr, CHOICES))
        return replace(offer, problem=offer.problem or f"unknown claims {claims!r}; known: {known}")
    if not claims or offer.problem is not None:
        return offer
    problem = refusal([unwrap(model) for model in models])
    if offer.dataset_samples is None:
        problem = "claims need a data set with positions, not an IterableDataset: use claims=False"
    elif loader.num_workers > 0 and chunks == "off":
        problem = "claims fetch small chunks: use chunks='auto' or 'on', or claims=False"
    return replace(offer, claims="on" if claims is True else "auto", chunks=True, problem=problem)
