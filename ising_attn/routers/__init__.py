"""Boolean routers: attention that either uses a key or does not, soft while it is trained and hard when it is used.

A router is a spin system at a temperature τ. `RouterAttention` takes its weights from the marginals of any sampler at τ
while it is soft and from `ground_state` when it is hard; `ArticleRouter` and `ScalarRouter` are the two forms of
hierarchical Boolean attention (HBA) that it generalises.

    from ising_attn.routers import use_routing
    with use_routing(model, "hard"):
        logits = model(tokens)
"""

from ising_attn.routers.article import ArticleRouter
from ising_attn.routers.ising import RouterAttention
from ising_attn.routers.router import (
    ROUTINGS,
    Router,
    Routing,
    recorded_routing,
    routers_of,
    set_routing,
    set_temperature,
    set_threshold,
    use_routing,
)
from ising_attn.routers.scalar import ScalarRouter

__all__ = [
    "ROUTINGS",
    "ArticleRouter",
    "Router",
    "RouterAttention",
    "Routing",
    "ScalarRouter",
    "recorded_routing",
    "routers_of",
    "set_routing",
    "set_temperature",
    "set_threshold",
    "use_routing",
]
