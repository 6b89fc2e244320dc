"""BiomedCLIP with differential attention, two heads, and the losses.

In come settings and pretrained weights; out comes a model that turns frames into 17 scores and an embedding. Begin with
`build_model`.

build_model         model of the settings, with pretrained weights
restore_model       the same model from a checkpoint alone
FrameModel          trunk, excitation, classification head and contrastive head
Output              what it returns for a batch
load_weights        the whole pretrained CLIP model, from the hub or a folder
fetch_weights       bring BiomedCLIP to a folder that needs no network
check_weights       is a folder complete, and are its files what they should be?
encode_prompts      the labels' text embeddings, of a loaded CLIP model
text_embeddings     the same from the settings
ModelError          weights that cannot be used
FORMS               names of the five forms of attention
Paper               the form that the published report describes
replace_attention   put a form into every block of a timm transformer
attention_maps      both softmax maps and their difference, of every block
strengths           lambda of every block and head
is_lambda           whether a parameter belongs to lambda
with_attention      a copy of a trunk with another form
fitting_forms       which forms a trunk can take, and why not the others
feature_drift       what is left of the pretrained features in each form
folding_error       shows that the published form is plain attention with another output matrix
attention_cost      multiply-adds of each form
Loss                classification and contrastive loss together
mixup               mixing pairs of frames and labels
positive_weights    weights of positive labels
"""

from rarevision.model.attention import Paper
from rarevision.model.comparison import (
    attention_cost,
    attention_maps,
    feature_drift,
    fitting_forms,
    folding_error,
    strengths,
    with_attention,
)
from rarevision.model.frame_model import FrameModel, Output, build_model, encode_prompts, restore_model, text_embeddings
from rarevision.model.losses import Loss, mixup, positive_weights
from rarevision.model.replacement import FORMS, is_lambda, replace_attention
from rarevision.model.weights import ModelError, check_weights, fetch_weights, load_weights

__all__ = [
    "FORMS",
    "FrameModel",
    "Loss",
    "ModelError",
    "Output",
    "Paper",
    "attention_cost",
    "attention_maps",
    "build_model",
    "check_weights",
    "encode_prompts",
    "feature_drift",
    "fetch_weights",
    "fitting_forms",
    "folding_error",
    "is_lambda",
    "load_weights",
    "mixup",
    "positive_weights",
    "replace_attention",
    "restore_model",
    "strengths",
    "text_embeddings",
    "with_attention",
]
