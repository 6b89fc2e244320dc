"""BiomedCLIP with differential attention, two heads, and the losses."""

from rarevision.model.attention import FORMS, Paper, attention_maps, is_lambda, replace_attention, strengths
from rarevision.model.drift import attention_cost, feature_drift, fitting_forms, folding_error, with_attention
from rarevision.model.frame_model import FrameModel, Output, build_model, encode_prompts, restore_model, text_embeddings
from rarevision.model.losses import Loss, mixup, positive_weights
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
