"""BiomedCLIP with differential attention, a classifier and a contrastive head, and what they are trained with.

In come the settings `config.model` and pretrained weights (a folder, or the hub); out comes a model that turns frames
`[B, 3, S, S]` into logits of the 17 labels, contrastive logits and an embedding. Begin with `build_model`.

build_model         the model of the settings, with pretrained weights and new heads
restore_model       a trained model from its recipe and its weights alone
FrameModel          trunk, projection and both heads; `parameter_groups` is for the optimizer
text_embeddings     the 17 labels' prompts as unit vectors, which the contrastive head compares with
fetch_weights       bring BiomedCLIP to a folder that needs no network
check_weights       is a folder complete, and are its files what they should be?
Loss                classification and contrastive loss together
positive_weights    weights of the positive labels in it, from their frequency
mixup               mixing pairs of frames and labels
FORMS               names of the five forms of attention, as `config.model.attention` takes them
replace_attention   put a form into every block of a timm transformer
comparison          module: what each form does to pretrained features, its maps, its lambdas, its cost (notebook 02)
"""

from rarevision.model import comparison
from rarevision.model.frame_model import FrameModel, build_model, restore_model, text_embeddings
from rarevision.model.losses import Loss, mixup, positive_weights
from rarevision.model.replacement import FORMS, replace_attention
from rarevision.model.weights import check_weights, fetch_weights

__all__ = [
    "FORMS",
    "FrameModel",
    "Loss",
    "build_model",
    "check_weights",
    "comparison",
    "fetch_weights",
    "mixup",
    "positive_weights",
    "replace_attention",
    "restore_model",
    "text_embeddings",
]
