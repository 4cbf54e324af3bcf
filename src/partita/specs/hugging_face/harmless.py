"""Fields of a `config.json` that change no number a trained model computes, by name and by kind of name.

Those of training, of generation, of other heads than that of a language model, and notes of the library that
wrote the file. Knows nothing about families; source: `PreTrainedConfig` and `GenerationConfig` of the
transformers library, versions 4 and 5.
"""

from __future__ import annotations

import re

_FILE = {
    *("model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "auto_map"),
    *("name_or_path", "tokenizer_class", "language", "model_max_length", "max_sequence_length"),
    *(
        "is_llama_config",
        "unsloth_fixed",
        "transformers.js_config",
        "vision_config",
        "use_bfloat16",
        "finetuning_task",
    ),
}
_HOW_IT_RUNS = {
    *("use_cache", "return_dict", "use_return_dict", "torchscript", "chunk_size_feed_forward"),
    *("output_attentions", "output_hidden_states", "output_past", "output_scores", "output_logits"),
    *("gradient_checkpointing", "attn_implementation", "use_flash_attn", "num_logits_to_keep", "is_decoder"),
    *("pretraining_tp", "reorder_and_upcast_attn", "tf_legacy_loss"),
}
_OTHER_HEADS = {
    *("num_labels", "id2label", "label2id", "problem_type", "task_specific_params", "pooler_hidden_act"),
    *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"),
}
_GENERATION = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "early_stopping", "max_time"),
    *("stop_strings", "do_sample", "num_beams", "cache_implementation", "cache_config", "temperature"),
    *("top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty"),
    *("encoder_repetition_penalty", "length_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("renormalize_logits", "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens"),
    *("begin_suppress_tokens", "sequence_bias", "num_return_sequences", "return_dict_in_generate"),
    *("encoder_no_repeat_ngram_size", "diversity_penalty", "num_beam_groups", "num_assistant_tokens"),
    *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_lookbehind"),
    "target_lookbehind",
}
_NAMES = _FILE | _HOW_IT_RUNS | _OTHER_HEADS | _GENERATION
_KINDS = re.compile(
    r"""^_                                         # private to the library that wrote it
    | (^|_)(dropout|pdrop)(_|$) | _dropout_prob$
    | initializer_range$ | ^initializer_factor$
    | _token_ids?$ | _token_index$
    | _version$""",
    re.VERBOSE,
)


def is_harmless(name: str) -> bool:
    """Whether a field of this name changes nothing, whatever its value."""
    return name in _NAMES or _KINDS.search(name) is not None
