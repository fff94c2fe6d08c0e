"""The patterns of rule 4: each a loop, its models, and how DDP and balance() are called for it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import loops
import torch
from loops import Side
from nets import WIDTH, Checkpointed, Heads, Net, Tied, Words
from torch import nn


@dataclass(frozen=True)
class Pattern:
    """A loop, its models, and how DDP and balance() are called for it."""

    loop: Callable[[Side], None]
    build: Callable[[], list[nn.Module]] = lambda: [Net()]
    ddp: dict[str, Any] = field(default_factory=dict)
    balance: dict[str, Any] = field(default_factory=dict)
    wrap: Callable[[Any], Any] = lambda model: model
    loader: dict[str, Any] = field(default_factory=dict)


def compiled(model: Any) -> Any:
    return torch.compile(model, backend="aot_eager", dynamic=True)


PATTERNS: dict[str, Pattern] = {
    "plain": Pattern(loops.plain),
    "workers": Pattern(loops.plain, loader={"num_workers": 2}),
    "summed": Pattern(loops.summed, balance={"reduction": "sum"}),
    "dictionary_tied": Pattern(loops.dictionary, lambda: [Tied()]),
    "accumulated": Pattern(loops.accumulated),
    "accumulated_plan_changes_within": Pattern(loops.accumulated, loader={"num_workers": 1}, balance={"chunks": "off"}),
    "drawing_ahead": Pattern(loops.drawing_ahead),
    "drawing_between_forward_and_backward": Pattern(loops.drawing_between),
    "two_batches_a_step": Pattern(loops.two_batches_a_step),
    "accumulated_whole_batches": Pattern(loops.accumulated, loader={"num_workers": 1}, balance={"chunks": "off"}),
    "scaled_whole_batches": Pattern(loops.scaled_accumulated, loader={"num_workers": 2}, balance={"chunks": "off"}),
    "accumulated_synced": Pattern(loops.accumulated_synced),
    "pieces": Pattern(loops.pieces),
    "scaled": Pattern(loops.scaled),
    "scaled_accumulated": Pattern(loops.scaled_accumulated, loader={"num_workers": 1}),
    "clipped": Pattern(loops.clipped),
    "hooked": Pattern(loops.hooked),
    "alternating": Pattern(loops.alternating, lambda: [Heads()], {"find_unused_parameters": True}),
    "static_graph": Pattern(loops.plain, ddp={"static_graph": True}),
    "static_graph_views": Pattern(loops.two_views, ddp={"static_graph": True}),
    "bucket_view": Pattern(loops.plain, ddp={"gradient_as_bucket_view": True}),
    "bucket_view_accumulated": Pattern(
        loops.accumulated, ddp={"gradient_as_bucket_view": True}, loader={"num_workers": 1}
    ),
    "small_buckets": Pattern(loops.plain, ddp={"bucket_cap_mb": 1e-5}),
    "compiled": Pattern(loops.plain, wrap=compiled),
    "checkpointed": Pattern(loops.plain, lambda: [Checkpointed(False)]),
    "checkpointed_reentrant": Pattern(loops.plain, lambda: [Checkpointed(True)]),
    "checkpointed_static": Pattern(loops.plain, lambda: [Checkpointed(True)], {"static_graph": True}),
    "gan": Pattern(loops.gan, lambda: [Net(WIDTH), Net()]),
    "gan_frozen": Pattern(loops.gan_frozen, lambda: [Net(WIDTH), Net()]),
    "chained": Pattern(loops.chained, lambda: [Net(WIDTH), Net()]),
    "two_views": Pattern(loops.two_views),
    "unrolled": Pattern(loops.unrolled, lambda: [Net(WIDTH)]),
    "regularised": Pattern(loops.regularised),
    "parameters_only": Pattern(loops.parameters_only),
    "valid_items": Pattern(loops.valid_items),
    "valid_accumulated": Pattern(loops.valid_accumulated, loader={"num_workers": 1}),
    "sparse": Pattern(loops.plain, lambda: [Words()]),
    "retained": Pattern(loops.retained),
    "retained_backwards": Pattern(loops.retained_backwards),
    "distracted": Pattern(loops.distracted),
    "skipping": Pattern(loops.skipping),
    "adamw": Pattern(loops.two_optimizers),
}
